"""How are the graphs built whose layers carry a state: Mamba, hybrids, gated delta nets, RWKV, LFM2?"""

from collections.abc import Callable

from berth.estimator.graph import blocks as b
from berth.estimator.graph.context import Context, NoGraph
from berth.estimator.graph.decoder import Habit, attention, feed, finish, mixture_or_dense
from berth.estimator.graph.tensor import (
    Node,
    concat,
    cont,
    copy_into,
    get_rows,
    glu,
    like,
    made,
    reshape,
    transpose,
    view,
)
from berth.estimator.shape import Layer

SCAN = Callable[[Node, Node], Node]


def states(c: Context, stored: Node, scan: SCAN | None = None) -> Node:
    """The states of the batch's sequences: cleared, gathered and the rest put back."""
    width, slots, sequences = stored.ne[0], stored.ne[1], c.batch.sequences
    ids = c.input("state rows", "I32", slots)
    main = _part(c, "state rows main", ids, sequences)
    tail = _part(c, "state rows tail", ids, slots - 1)
    table = reshape(stored, width, slots)
    zero = view(table, (0,))
    c.expand(Node(zero.kind, zero.ne, "scale", (zero,), zero.nb, zero))
    gathered = get_rows(table, tail if scan is not None else ids)
    first = (
        scan(table, main)
        if scan is not None
        else view(gathered, (width, sequences), (gathered.nb[1],))
    )
    c.expand(first)
    extra = view(gathered, (width, slots - sequences), (gathered.nb[1],))
    c.expand(copy_into(extra, view(stored, (width, slots - sequences), (stored.nb[1],))))
    return first


def _part(c: Context, name: str, ids: Node, count: int) -> Node:
    key = (name, -1)
    if key not in c.held:
        c.held[key] = view(ids, (count,))
    found = c.held[key]
    assert found is not None
    return found


def mamba1(c: Context, layer: Layer, x: Node) -> Node:
    """A Mamba block."""
    number, sequences = layer.number, c.batch.sequences
    tokens = c.batch.rows // sequences
    kernel, inner, state = (
        c.positive("ssm.conv_kernel"),
        c.positive("ssm.inner_size"),
        c.positive("ssm.state_size"),
    )
    rank = c.positive("ssm.time_step_rank")
    shifted = c.state(layer, "r")
    conv = reshape(states(c, shifted), kernel - 1, inner, sequences)
    x = reshape(x, x.ne[0], tokens, sequences)
    both = b.linear(c, x, "ssm_in", number)
    part = view(both, (inner, both.ne[1], both.ne[2]), both.nb[1:3])
    z = view(both, (inner, both.ne[1], both.ne[2]), both.nb[1:3])
    window = concat(conv, transpose(part), 0)
    last = view(window, (kernel - 1, inner, sequences), window.nb[1:3])
    c.expand(copy_into(last, view(shifted, ((kernel - 1) * inner * sequences,))))
    x = _conv(c, window, number, inner, tokens, sequences)
    low = b.linear(c, x, "ssm_x", number)
    dt = view(low, (rank, tokens, sequences), low.nb[1:3])
    key = view(low, (state, 1, tokens, sequences), (4 * state, low.nb[1], low.nb[2]))
    query = view(low, (state, 1, tokens, sequences), (4 * state, low.nb[1], low.nb[2]))
    if c.weight("ssm_dt_norm", number) is not None or c.facts.hparams.get("ssm.dt_b_c_rms"):
        dt, key, query = (
            b.norm(one, c.weight(f"ssm_{name}_norm", number))
            for name, one in (("dt", dt), ("b", key), ("c", query))
        )
    else:
        dt = cont(dt)
    dt = b.linear(c, dt, "ssm_dt", number)
    before, decay = x, c.weight("ssm_a", number, "")
    x = reshape(x, 1, inner, tokens, sequences)

    def scan(table: Node, ids: Node) -> Node:
        rows = reshape(table, state, 1, inner, table.ne[1])
        assert decay is not None
        return made(
            "ssm_scan",
            (x.elements + state * inner * sequences,),
            rows,
            x,
            dt,
            decay,
            key,
            query,
            ids,
        )

    carried = c.state(layer, "s")
    y = states(c, carried, scan)
    c.expand(
        copy_into(
            view(y, (state * inner * sequences,)), view(carried, (state * inner * sequences,))
        )
    )
    out = view(y, (inner, tokens, sequences), x.nb[2:4])
    skip = c.weight("ssm_d", number, "")
    assert skip is not None
    out = like("add", out, like("mul", before, skip))
    out = glu(cont(z), out)
    out = b.linear(c, out, "ssm_out", number)
    return reshape(out, out.ne[0], tokens * sequences)


def _conv(c: Context, window: Node, number: int, width: int, tokens: int, sequences: int) -> Node:
    kernel, bias = c.weight("ssm_conv1d", number), c.weight("ssm_conv1d", number, "bias")
    if kernel is None:
        raise NoGraph("ssm_conv1d")
    x = made("ssm_conv", (width, tokens, sequences), window, kernel)
    x = like("add", x, bias) if bias is not None else x
    return like("unary", x)


def mamba2(c: Context, layer: Layer, x: Node) -> Node:
    """A Mamba-2 block."""
    number, sequences = layer.number, c.batch.sequences
    tokens = c.batch.rows // sequences
    kernel, inner, state = (
        c.positive("ssm.conv_kernel"),
        c.positive("ssm.inner_size"),
        c.positive("ssm.state_size"),
    )
    heads, groups = c.positive("ssm.time_step_rank"), c.positive("ssm.group_count")
    head, mixed = inner // heads, inner + 2 * groups * state
    shifted = c.state(layer, "r")
    conv = reshape(states(c, shifted), kernel - 1, mixed, sequences)
    both = b.linear(c, x, "ssm_in", number)
    both = reshape(both, both.ne[0], tokens, sequences)
    z = view(both, (head, heads, tokens, sequences), (4 * head, both.nb[1], both.nb[2]))
    part = view(both, (mixed, tokens, sequences), both.nb[1:3])
    dt = view(both, (heads, tokens, sequences), both.nb[1:3])
    window = concat(conv, transpose(part), 0)
    last = view(window, (kernel - 1, mixed, sequences), window.nb[1:3])
    c.expand(copy_into(last, view(shifted, ((kernel - 1) * mixed, sequences), (shifted.nb[1],))))
    y_in = _conv(c, window, number, mixed, tokens, sequences)
    x = view(y_in, (head, heads, tokens, sequences), (4 * head, y_in.nb[1], y_in.nb[2]))
    key = view(y_in, (state, groups, tokens, sequences), (4 * state, y_in.nb[1], y_in.nb[2]))
    query = view(y_in, (state, groups, tokens, sequences), (4 * state, y_in.nb[1], y_in.nb[2]))
    bias, decay, skip = (
        c.weight("ssm_dt", number, "bias"),
        c.weight("ssm_a", number, ""),
        c.weight("ssm_d", number, ""),
    )
    if bias is None or decay is None or skip is None:
        raise NoGraph("ssm_dt")
    dt = like("add", cont(dt), bias)

    def scan(table: Node, ids: Node) -> Node:
        rows = reshape(table, state, head, heads, table.ne[1])
        size = x.elements + state * head * heads * ids.ne[0]
        return made("ssm_scan", (size,), rows, x, dt, decay, key, query, ids)

    carried = c.state(layer, "s")
    y = states(c, carried, scan)
    size = state * inner
    target = view(carried, (size, sequences, 1), (carried.nb[1], carried.nb[1]))
    c.expand(copy_into(view(y, (size, sequences, 1), (4 * size, 4 * size * sequences)), target))
    out = view(
        y, (head, heads, tokens, sequences), (x.nb[1], heads * x.nb[1], tokens * heads * x.nb[1])
    )
    out = like("add", out, like("mul", x, skip))
    out = glu(cont(z), out)
    weight = c.weight("ssm_norm", number)
    if weight is not None:
        out = b.norm(reshape(out, inner // groups, groups, tokens, sequences), weight)
    return b.linear(c, reshape(out, inner, tokens * sequences), "ssm_out", number)


def mamba(c: Context) -> None:
    """Mamba and Mamba-2: nothing but such blocks."""
    block = mamba2 if c.shape.architecture == "mamba2" else mamba1
    x = b.embed(c)
    last = c.shape.layers[-1].number
    for layer in c.shape.layers:
        cur = block(c, layer, b.norm(x, c.weight("attn_norm", layer.number)))
        if layer.number == last:
            cur, x = b.last_rows(c, cur, x)
        x = like("add", cur, x)
    finish(c, Habit(), x)


def jamba(c: Context) -> None:
    """Jamba: Mamba blocks, a few that attend (without rotation), experts in every other one."""
    habit = Habit(rope=False, residual_first=True, ffn_residual_first=True, norm_weights=False)
    _hybrid(c, habit, mamba1, residual_first=True)


def granite_hybrid(c: Context) -> None:
    """Granite hybrid: Mamba-2 blocks and a few that attend."""
    rope = c.facts.hparams.get("rope.scaling.finetuned", True) is not False
    _hybrid(c, Habit(rope=rope, scale_logits=True), mamba2, residual_first=False)


def _hybrid(
    c: Context, habit: Habit, block: Callable[[Context, Layer, Node], Node], *, residual_first: bool
) -> None:
    x = b.embed(c)
    last = c.shape.layers[-1].number
    for layer in c.shape.layers:
        number, residual = layer.number, x
        normed = b.norm(x, c.weight("attn_norm", number))
        cur = block(c, layer, normed) if layer.recurrent else attention(c, habit, layer, normed)
        if number == last:
            cur, residual = b.last_rows(c, cur, residual)
        cur = like("scale", cur) if c.real("residual_scale") else cur
        middle = like("add", residual, cur) if residual_first else like("add", cur, residual)
        x = feed(c, habit, number, middle)
    finish(c, habit, x)


def lfm2(c: Context) -> None:
    """LFM2: short convolutions and a few blocks that attend."""
    habit = Habit(ffn_residual_first=True, residual_first=True)
    x = b.embed(c)
    last = c.shape.layers[-1].number
    for layer in c.shape.layers:
        number, residual = layer.number, x
        normed = b.norm(x, c.weight("attn_norm", number))
        cur = (
            _short_conv(c, layer, normed) if layer.recurrent else attention(c, habit, layer, normed)
        )
        if number == last:
            cur, residual = b.last_rows(c, cur, residual)
        middle = like("add", residual, cur)
        x = feed(c, habit, number, middle)
    finish(c, habit, x)


def _short_conv(c: Context, layer: Layer, x: Node) -> Node:
    number, sequences, width = layer.number, c.batch.sequences, c.shape.embedding
    tokens, kernel = c.batch.rows // sequences, c.positive("shortconv.l_cache") - 1
    x = reshape(x, x.ne[0], tokens, sequences)
    both = b.linear(c, x, "shortconv.in_proj", number)
    part = both.ne[0] // 3
    gate, out_gate, value = (
        view(both, (part, both.ne[1], both.ne[2]), both.nb[1:3]) for _ in range(3)
    )
    gated = transpose(like("mul", gate, value))
    stored = c.state(layer, "r")
    conv = reshape(states(c, stored), kernel, width, sequences)
    window = concat(conv, gated, 0)
    last = view(window, (kernel, window.ne[1], window.ne[2]), window.nb[1:3])
    c.expand(copy_into(last, view(stored, (kernel * width, sequences), (stored.nb[1],))))
    weight = c.weight("shortconv.conv", number)
    if weight is None:
        raise NoGraph("shortconv.conv")
    y = like("mul", out_gate, made("ssm_conv", (width, tokens, sequences), window, weight))
    y = b.linear(c, y, "shortconv.out_proj", number)
    return reshape(y, y.ne[0], tokens * sequences)


def qwen3next(c: Context) -> None:
    """Qwen3-Next: gated delta nets, every fourth block attends with a gate."""
    habit = Habit(post_is_ffn_norm=True, last_inside=False, keep_hidden=True)
    x = b.embed(c)
    for layer in c.shape.layers:
        number, residual = layer.number, x
        cur = b.norm(x, c.weight("attn_norm", number))
        c.expand(cur)
        cur = _delta(c, layer, cur) if layer.recurrent else _gated_attention(c, layer, cur)
        x = _next_feed(c, habit, number, like("add", cur, residual))
    finish(c, habit, x)


def _next_feed(c: Context, habit: Habit, number: int, middle: Node) -> Node:
    normed = b.norm(middle, c.weight("post_attention_norm", number))
    return like("add", mixture_or_dense(c, habit, number, normed), middle)


def _gated_attention(c: Context, layer: Layer, x: Node) -> Node:
    number, rows = layer.number, c.batch.rows
    raw = [b.linear(c, x, f"attn_{name}", number) for name in "qkv"]
    full = reshape(raw[0], 2 * layer.key, layer.heads, rows)
    q = view(full, (layer.key, layer.heads, rows), full.nb[1:4])
    gate = view(full, (layer.key, layer.heads, rows), full.nb[1:4])
    k = reshape(raw[1], layer.key, layer.kv_heads, rows)
    v = reshape(raw[2], layer.key, layer.kv_heads, rows)
    q = b.norm(q, c.weight("attn_q_norm", number))
    k = b.norm(k, c.weight("attn_k_norm", number))
    cur = b.attend(c, layer, b.rope(c, q), b.rope(c, k), v, wo="")
    gate = like("unary", cont(gate, layer.key * layer.heads, rows))
    return b.linear(c, like("mul", cur, gate), "attn_output", number)


def _delta(c: Context, layer: Layer, x: Node) -> Node:
    number, sequences = layer.number, c.batch.sequences
    tokens = c.batch.rows // sequences
    inner, key, key_heads = (
        c.positive("ssm.inner_size"),
        c.positive("ssm.state_size"),
        c.positive("ssm.group_count"),
    )
    heads = c.positive("ssm.time_step_rank")
    value = inner // heads
    mixed, z = _mixed(c, number, x, tokens, sequences)
    beta, gate = _beta_gate(c, number, x, heads, key_heads, tokens, sequences)
    kernel = c.weight("ssm_conv1d", number)
    if kernel is None:
        raise NoGraph("ssm_conv1d")
    channels, size = inner + 2 * key_heads * key, kernel.ne[0]
    shifted, carried = c.state(layer, "r"), c.state(layer, "s")
    window = _window(c, shifted, mixed, size, channels, sequences)
    state = reshape(states(c, carried), value, value, heads, sequences)
    conv = like("unary", made("ssm_conv", (channels, tokens, sequences), window, kernel))
    stride = 4 * (2 * key * key_heads + value * heads)
    q = view(conv, (key, key_heads, tokens, sequences), (4 * key, stride, stride * tokens))
    k = view(conv, (key, key_heads, tokens, sequences), (4 * key, stride, stride * tokens))
    v = view(conv, (value, heads, tokens, sequences), (4 * value, stride, stride * tokens))
    q, k = like("scale", b.rms(q)), like("scale", b.rms(k))
    if key_heads != heads and c.shape.architecture == "qwen3next":
        q, k = (
            _repeated(q, key, key_heads, heads, tokens, sequences),
            _repeated(k, key, key_heads, heads, tokens, sequences),
        )
    out = _delta_net(c, q, k, v, gate, beta, state, carried)
    z = reshape(z, value, heads, tokens, sequences)
    normed = like("mul", b.norm(out, c.weight("ssm_norm", number)), like("unary", z))
    y = b.linear(c, reshape(normed, value * heads, tokens, sequences), "ssm_out", number)
    return reshape(y, c.shape.embedding, tokens * sequences)


def _mixed(c: Context, number: int, x: Node, tokens: int, sequences: int) -> tuple[Node, Node]:
    mixed = b.linear(c, x, "attn_qkv", number)
    return reshape(mixed, mixed.ne[0], tokens, sequences), b.linear(c, x, "attn_gate", number)


def _beta_gate(
    c: Context, number: int, x: Node, heads: int, key_heads: int, tokens: int, sequences: int
) -> tuple[Node, Node]:
    both = b.linear(c, x, "ssm_ba", number)
    per = heads // key_heads
    split = reshape(both, 2 * per, key_heads, tokens, sequences)
    beta = like("unary", cont(view(split, (per, key_heads, tokens, sequences), split.nb[1:4])))
    alpha = cont(
        view(split, (per, key_heads, tokens, sequences), split.nb[1:4]), heads, tokens, sequences
    )
    bias, decay = c.weight("ssm_dt", number, "bias"), c.weight("ssm_a", number, "")
    if bias is None or decay is None:
        raise NoGraph("ssm_dt")
    gate = like("mul", like("unary", like("add", alpha, bias)), decay)
    return reshape(beta, 1, heads, tokens, sequences), reshape(gate, 1, heads, tokens, sequences)


def _window(
    c: Context, shifted: Node, mixed: Node, size: int, channels: int, sequences: int
) -> Node:
    conv = reshape(states(c, shifted), size - 1, channels, sequences)
    window = concat(conv, transpose(mixed), 0)
    last = view(window, (size - 1, channels, sequences), window.nb[1:3])
    c.expand(copy_into(last, view(shifted, ((size - 1) * channels, sequences), (shifted.nb[1],))))
    return window


def _repeated(x: Node, key: int, key_heads: int, heads: int, tokens: int, sequences: int) -> Node:
    times = heads // key_heads
    flat = reshape(x, key, 1, key_heads, tokens * sequences)
    return reshape(
        made("repeat", (key, times, key_heads, tokens * sequences), flat),
        key,
        heads,
        tokens,
        sequences,
    )


def _delta_net(
    c: Context, q: Node, k: Node, v: Node, gate: Node, beta: Node, state: Node, carried: Node
) -> Node:
    value, heads, tokens, sequences = v.ne
    rows = tokens * sequences + value * sequences
    found = made("gated_delta_net", (value * heads, rows), q, k, v, gate, beta, state)
    row = 4 * value * heads
    out = view(found, (value, heads, tokens, sequences), (4 * value, row, row * tokens))
    new = view(
        found,
        (value, value, heads, sequences),
        (4 * value, 4 * value * value, 4 * value * value * heads),
    )
    c.expand(copy_into(new, view(carried, (carried.ne[0], sequences), (carried.nb[1],))))
    return out


BUILDERS: dict[str, Callable[[Context], None]] = {
    "mamba": mamba,
    "mamba2": mamba,
    "jamba": jamba,
    "granitehybrid": granite_hybrid,
    "lfm2": lfm2,
    "lfm2moe": lfm2,
    "qwen3next": qwen3next,
}
