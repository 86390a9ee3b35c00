"""How are the graphs of RWKV 6 and 7 built?"""

from berth.estimator.graph import blocks as b
from berth.estimator.graph.context import Context, NoGraph
from berth.estimator.graph.decoder import Habit, finish
from berth.estimator.graph.recurrent import states
from berth.estimator.graph.tensor import (
    Node,
    concat,
    cont,
    copy_into,
    like,
    made,
    mul_mat,
    permute,
    reshape,
    sum_rows,
    view,
)
from berth.estimator.shape import Layer

FUSED = 5


def need(c: Context, stem: str, number: int, suffix: str = "weight") -> Node:
    """A weight that must be there. Raises NoGraph."""
    found = c.weight(stem, number, suffix)
    if found is None:
        raise NoGraph(stem)
    return found


def rwkv(c: Context) -> None:
    """The whole graph of either."""
    width, rows, sequences = c.shape.embedding, c.batch.rows, c.batch.sequences
    tokens = rows // sequences
    seven = c.shape.architecture == "rwkv7"
    x = b.norm(
        b.embed(c),
        c.weight("token_embd_norm"),
        c.weight("token_embd_norm", -1, "bias"),
        kind="norm",
    )
    last = c.shape.layers[-1].number
    first_value: list[Node] = []
    for layer in c.blocks():
        number = layer.number
        x = reshape(x, width, tokens, sequences)
        stored = c.state(layer, "r")
        shift = reshape(states(c, stored), width, stored.ne[0] // width, sequences)
        mix_shift = view(shift, (width, 1, sequences), shift.nb[1:3])
        feed_shift = view(shift, (width, 1, sequences), shift.nb[1:3])
        normed = _norm(c, x, "attn_norm", number)
        before = concat(mix_shift, view(normed, (width, tokens - 1, sequences), normed.nb[1:3]), 1)
        cur = (
            _mix7(c, layer, normed, before, first_value)
            if seven
            else _mix6(c, layer, normed, before)
        )
        middle = like("add", cur, x)
        fed = _norm(c, middle, "attn_norm_2", number)
        before = concat(feed_shift, view(fed, (width, tokens - 1, sequences), fed.nb[1:3]), 1)
        _store_shift(c, stored, normed, fed)
        flat = [reshape(one, width, rows) for one in (middle, fed, before)]
        if number == last:
            flat = b.last_rows(c, *flat)
        x = like("add", _channel(c, number, flat[1], flat[2], seven=seven), flat[0])
        rescale = c.number("rescale_every_n_layers")
        if rescale and (number + 1) % rescale == 0 and not seven:
            x = like("scale", x)
    finish(c, Habit(norm="norm"), x)


def _norm(c: Context, x: Node, stem: str, number: int) -> Node:
    return b.norm(x, c.weight(stem, number), c.weight(stem, number, "bias"), kind="norm")


def _store_shift(c: Context, stored: Node, normed: Node, fed: Node) -> None:
    width, _, sequences, _ = normed.ne
    ends = [view(one, (width, 1, sequences), one.nb[1:3]) for one in (normed, fed)]
    both = concat(ends[0], ends[1], 1)
    size = stored.ne[0] * sequences
    c.expand(copy_into(view(both, (size,)), view(stored, (size,))))


def _channel(c: Context, number: int, cur: Node, before: Node, *, seven: bool) -> Node:
    moved = like("sub", before, cur)
    keys = like("add", like("mul", moved, need(c, "channel_mix_lerp_k", number)), cur)
    if seven:
        keyed = like("sqr", like("unary", b.linear(c, keys, "channel_mix_key", number)))
        return b.linear(c, keyed, "channel_mix_value", number)
    gates = like("add", like("mul", moved, need(c, "channel_mix_lerp_r", number)), cur)
    gate = like("unary", b.linear(c, gates, "channel_mix_receptance", number))
    keyed = like("sqr", like("unary", b.linear(c, keys, "channel_mix_key", number)))
    return like("mul", gate, b.linear(c, keyed, "channel_mix_value", number))


def _carry(c: Context, layer: Layer, found: Node) -> Node:
    """Stores the state that a step gives behind its rows, and gives the rows."""
    width, rows, head = c.shape.embedding, c.batch.rows, c.positive("wkv.head_size")
    out = view(found, (width * rows,))
    size = width * head * c.batch.sequences
    c.expand(copy_into(view(found, (size,)), view(c.state(layer, "s"), (size,))))
    return out


def _mixed6(c: Context, number: int, cur: Node, before: Node) -> list[Node]:
    """The five inputs of a time mix: each row moved towards the one before it."""
    width, rows = c.shape.embedding, c.batch.rows
    moved = reshape(like("sub", before, cur), width, rows)
    cur = reshape(cur, width, rows)
    mixed = like("add", like("mul", moved, need(c, "time_mix_lerp_x", number)), cur)
    down, up = need(c, "time_mix_w1", number), need(c, "time_mix_w2", number)
    low = reshape(like("unary", mul_mat(down, mixed)), down.ne[1] // FUSED, 1, FUSED, rows)
    low = cont(permute(low, 0, 1, 3, 2))
    mixed = mul_mat(reshape(up, up.ne[0], up.ne[1], 1, FUSED), low)
    fused = c.weight("time_mix_lerp_fused", number)
    if fused is None:
        raise NoGraph("time_mix_lerp_fused")
    wide, plain = reshape(moved, width, 1, rows), reshape(cur, width, 1, rows)
    mixed = like("add", like("mul", like("add", mixed, fused), wide), plain)
    return [view(mixed, (width, rows), (mixed.nb[1],)) for _ in range(FUSED)]


def _mix6(c: Context, layer: Layer, cur: Node, before: Node) -> Node:
    number, width, rows = layer.number, c.shape.embedding, c.batch.rows
    head = c.positive("wkv.head_size")
    heads = width // head
    w, k, v, r, g = _mixed6(c, number, cur, before)
    receive, key = (
        b.linear(c, r, "time_mix_receptance", number),
        b.linear(c, k, "time_mix_key", number),
    )
    value = b.linear(c, v, "time_mix_value", number)
    gate = like("unary", b.linear(c, g, "time_mix_gate", number))
    key, value, receive = (reshape(one, head, heads, rows) for one in (key, value, receive))
    decay = mul_mat(
        need(c, "time_mix_decay_w2", number),
        like("unary", mul_mat(need(c, "time_mix_decay_w1", number), w)),
    )
    decay = like("add", decay, need(c, "time_mix_decay", number))
    decay = reshape(like("unary", like("unary", like("unary", decay))), head, heads, rows)
    state = states(c, c.state(layer, "s"))
    first = need(c, "time_mix_first", number)
    size = (width, rows + head * c.batch.sequences)
    out = _carry(c, layer, made("rwkv_wkv6", size, key, value, receive, first, decay, state))
    out = reshape(like("norm", reshape(out, head, heads, rows)), width, rows)
    out = like(
        "add",
        like("mul", out, need(c, "time_mix_ln", number)),
        need(c, "time_mix_ln", number, "bias"),
    )
    out = b.linear(c, like("mul", out, gate), "time_mix_output", number)
    return reshape(out, width, rows // c.batch.sequences, c.batch.sequences)


def _mix7(c: Context, layer: Layer, cur: Node, before: Node, first_value: list[Node]) -> Node:
    number, width, rows, sequences = (
        layer.number,
        c.shape.embedding,
        c.batch.rows,
        c.batch.sequences,
    )
    head = c.positive("wkv.head_size")
    shape = (head, width // head, rows)
    r, w, k, v, a, g = _mixed7(c, number, cur, before)
    receive, decay = b.linear(c, r, "time_mix_receptance", number), _decay7(c, number, w)
    key, value = b.linear(c, k, "time_mix_key", number), b.linear(c, v, "time_mix_value", number)
    value = _residual_value(c, number, v, value, first_value)
    gate = _gate7(c, number, g)
    rate = mul_mat(need(c, "time_mix_a2", number), mul_mat(need(c, "time_mix_a1", number), a))
    rate = like("unary", like("add", rate, need(c, "time_mix_a0", number)))
    unit = like("l2_norm", reshape(like("mul", key, need(c, "time_mix_k_k", number)), *shape))
    scaled = like("mul", key, need(c, "time_mix_k_a", number))
    key = like("add", key, like("sub", like("mul", rate, scaled), scaled))
    receive, decay, key, value, rate = (
        reshape(one, *shape) for one in (receive, decay, key, value, rate)
    )
    state = states(c, c.state(layer, "s"))
    operands = (receive, decay, key, value, like("unary", unit), like("mul", unit, rate), state)
    out = _carry(c, layer, made("rwkv_wkv7", (width, rows + head * sequences), *operands))
    out = _normed_heads(c, number, out, shape)
    bonus = reshape(need(c, "time_mix_r_k", number), head, width // head)
    kept = sum_rows(like("mul", like("mul", key, receive), bonus))
    out = like("add", out, reshape(like("mul", value, kept), width, rows))
    out = like("mul", out, gate) if gate is not None else out
    out = b.linear(c, out, "time_mix_output", number)
    return reshape(out, width, rows // sequences, sequences)


def _mixed7(c: Context, number: int, cur: Node, before: Node) -> list[Node]:
    """The inputs of a time mix, five or with a gate six, as views of one tensor."""
    width, rows, sequences = c.shape.embedding, c.batch.rows, c.batch.sequences
    count = 6 if c.weight("time_mix_g1", number) is not None else 5
    moved = made("repeat", (width, rows // sequences, sequences, count), like("sub", before, cur))
    mixed = like("add", like("mul", moved, need(c, "time_mix_lerp_fused", number)), cur)
    return [view(mixed, (width, rows), (mixed.nb[1],)) for _ in range(6)]


def _decay7(c: Context, number: int, w: Node) -> Node:
    low = like("unary", mul_mat(need(c, "time_mix_w1", number), w))
    decay = like(
        "add", mul_mat(need(c, "time_mix_w2", number), low), need(c, "time_mix_w0", number)
    )
    return like("unary", like("scale", like("unary", decay)))


def _gate7(c: Context, number: int, g: Node) -> Node | None:
    down, up = c.weight("time_mix_g1", number), c.weight("time_mix_g2", number)
    if down is None or up is None:
        return None
    return mul_mat(up, like("unary", mul_mat(down, g)))


def _normed_heads(c: Context, number: int, out: Node, shape: tuple[int, int, int]) -> Node:
    width, rows = shape[0] * shape[1], shape[2]
    if c.weight("time_mix_ln", number) is None:
        return reshape(out, width, rows)
    out = reshape(like("norm", reshape(out, *shape)), width, rows)
    out = like("mul", out, need(c, "time_mix_ln", number))
    return like("add", out, need(c, "time_mix_ln", number, "bias"))


def _residual_value(c: Context, number: int, v: Node, value: Node, first: list[Node]) -> Node:
    if not first:
        first.append(value)
        return value
    low = mul_mat(need(c, "time_mix_v2", number), mul_mat(need(c, "time_mix_v1", number), v))
    share = like("unary", like("add", low, need(c, "time_mix_v0", number)))
    return like("add", value, like("mul", like("sub", first[0], value), share))
