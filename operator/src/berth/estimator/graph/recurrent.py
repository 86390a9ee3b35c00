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
    tokens, inner = c.batch.rows // sequences, c.positive("ssm.inner_size")
    state = c.positive("ssm.state_size")
    x = reshape(x, x.ne[0], tokens, sequences)
    x, z = _mamba1_inner(c, layer, x)
    dt, key, query = _mamba1_steps(c, number, x)
    decay, skip = c.weight("ssm_a", number, ""), c.weight("ssm_d", number, "")
    if decay is None or skip is None:
        raise NoGraph("ssm_a")
    before, x = x, reshape(x, 1, inner, tokens, sequences)

    def scan(table: Node, ids: Node) -> Node:
        rows = reshape(table, state, 1, inner, table.ne[1])
        size = (x.elements + state * inner * sequences,)
        return made("ssm_scan", size, rows, x, dt, decay, key, query, ids)

    carried = c.state(layer, "s")
    y = states(c, carried, scan)
    c.expand(
        copy_into(
            view(y, (state * inner * sequences,)), view(carried, (state * inner * sequences,))
        )
    )
    out = view(y, (inner, tokens, sequences), x.nb[2:4])
    out = like("add", out, like("mul", before, skip))
    out = b.linear(c, glu(cont(z), out), "ssm_out", number)
    return reshape(out, out.ne[0], tokens * sequences)


def _mamba1_inner(c: Context, layer: Layer, x: Node) -> tuple[Node, Node]:
    """The shifted and convolved half of the inner rows, and the gating half."""
    number, sequences = layer.number, c.batch.sequences
    kernel, inner = c.positive("ssm.conv_kernel"), c.positive("ssm.inner_size")
    shifted = c.state(layer, "r")
    conv = reshape(states(c, shifted), kernel - 1, inner, sequences)
    both = b.linear(c, x, "ssm_in", number)
    part = view(both, (inner, both.ne[1], both.ne[2]), both.nb[1:3])
    z = view(both, (inner, both.ne[1], both.ne[2]), both.nb[1:3])
    window = concat(conv, transpose(part), 0)
    last = view(window, (kernel - 1, inner, sequences), window.nb[1:3])
    c.expand(copy_into(last, view(shifted, ((kernel - 1) * inner * sequences,))))
    return _conv(c, window, number, inner, x.ne[1], sequences), z


def _mamba1_steps(c: Context, number: int, x: Node) -> tuple[Node, Node, Node]:
    """How far each row steps, and with which keys and queries."""
    rank, state = c.positive("ssm.time_step_rank"), c.positive("ssm.state_size")
    tokens, sequences = x.ne[1], x.ne[2]
    low = b.linear(c, x, "ssm_x", number)
    dt = view(low, (rank, tokens, sequences), low.nb[1:3])
    key = view(low, (state, 1, tokens, sequences), (4 * state, low.nb[1], low.nb[2]))
    query = view(low, (state, 1, tokens, sequences), (4 * state, low.nb[1], low.nb[2]))
    if c.weight("ssm_dt_norm", number) is not None or c.facts.hparams.get("ssm.dt_b_c_rms"):
        dt = b.norm(dt, c.weight("ssm_dt_norm", number))
        key = b.norm(key, c.weight("ssm_b_norm", number))
        query = b.norm(query, c.weight("ssm_c_norm", number))
    else:
        dt = cont(dt)
    return b.linear(c, dt, "ssm_dt", number), key, query


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
    tokens, inner = c.batch.rows // sequences, c.positive("ssm.inner_size")
    state, heads = c.positive("ssm.state_size"), c.positive("ssm.time_step_rank")
    groups, head = c.positive("ssm.group_count"), inner // heads
    inner_rows, z, dt = _mamba2_inner(c, layer, x, head)
    x = view(inner_rows, (head, heads, tokens, sequences), (4 * head, *inner_rows.nb[1:3]))
    key = view(inner_rows, (state, groups, tokens, sequences), (4 * state, *inner_rows.nb[1:3]))
    query = view(inner_rows, (state, groups, tokens, sequences), (4 * state, *inner_rows.nb[1:3]))
    bias, decay = c.weight("ssm_dt", number, "bias"), c.weight("ssm_a", number, "")
    if bias is None or decay is None:
        raise NoGraph("ssm_dt")
    dt = like("add", cont(dt), bias)

    def scan(table: Node, ids: Node) -> Node:
        rows = reshape(table, state, head, heads, table.ne[1])
        size = (x.elements + state * head * heads * ids.ne[0],)
        return made("ssm_scan", size, rows, x, dt, decay, key, query, ids)

    carried = c.state(layer, "s")
    y = states(c, carried, scan)
    size = state * inner
    target = view(carried, (size, sequences, 1), (carried.nb[1], carried.nb[1]))
    c.expand(copy_into(view(y, (size, sequences, 1), (4 * size, 4 * size * sequences)), target))
    row = x.nb[1]
    out = view(y, (head, heads, tokens, sequences), (row, heads * row, tokens * heads * row))
    return _mamba2_out(c, number, out, x, z)


def _mamba2_inner(c: Context, layer: Layer, x: Node, head: int) -> tuple[Node, Node, Node]:
    """The convolved inner rows, the gate and the steps."""
    number, sequences = layer.number, c.batch.sequences
    tokens, inner = c.batch.rows // sequences, c.positive("ssm.inner_size")
    kernel, heads = c.positive("ssm.conv_kernel"), c.positive("ssm.time_step_rank")
    mixed = inner + 2 * c.positive("ssm.group_count") * c.positive("ssm.state_size")
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
    return _conv(c, window, number, mixed, tokens, sequences), z, dt


def _mamba2_out(c: Context, number: int, out: Node, x: Node, z: Node) -> Node:
    skip, weight = c.weight("ssm_d", number, ""), c.weight("ssm_norm", number)
    if skip is None:
        raise NoGraph("ssm_d")
    tokens, sequences = x.ne[2], x.ne[3]
    inner, groups = x.ne[0] * x.ne[1], c.positive("ssm.group_count")
    out = like("add", out, like("mul", x, skip))
    out = glu(cont(z), out)
    if weight is not None:
        out = b.norm(reshape(out, inner // groups, groups, tokens, sequences), weight)
    return b.linear(c, reshape(out, inner, tokens * sequences), "ssm_out", number)
