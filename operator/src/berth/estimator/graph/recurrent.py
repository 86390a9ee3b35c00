"""How are the parts of a layer built that carry a state: Mamba, Mamba-2 and what feeds them?"""

from collections.abc import Callable

from berth.estimator.graph import blocks as b
from berth.estimator.graph.context import Context, NoGraph
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
