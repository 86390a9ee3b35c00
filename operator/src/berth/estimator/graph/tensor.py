"""What is a tensor of the graph, and which operations make one of others?

Shapes are ggml's: four dimensions, the row first; strides in bytes. A view shares the memory of its base.
"""

from collections.abc import Sequence
from functools import lru_cache

from berth.facts.ggml import BY_NAME

NONE, VIEW_OPS = "none", frozenset({"reshape", "view", "permute", "transpose", "none"})

INPLACE = frozenset(
    {
        "add",
        "add_id",
        "sub",
        "mul",
        "div",
        "scale",
        "sqr",
        "sqrt",
        "unary",
        "rope",
        "rms_norm",
        "soft_max",
        "clamp",
        "fill",
    }
)
"""Operations whose result may take the place of an operand."""

Dims = tuple[int, int, int, int]


class Node:
    """One tensor: its layout, the operation that makes it and the operands.

    Few of its fields are set on a node; the rest are read from the class until a pass writes them.
    """

    packed = True
    """Whether its elements lie one after another as they were made."""
    base: "Node | None" = None
    """Whose memory a view shares."""
    external = False
    """Its memory is there already: a weight, or a part of the cache."""
    weight = False
    is_input = False
    is_output = False
    owner = ""
    name = ""
    block = -1
    pin = -1
    """The block to whose device the engine holds it; -1 for none."""
    forced = False
    """Whether it is computed on the host, whatever its operands say."""
    seen = False
    watched = False
    """Whether the planner is to note how it stands before this node."""
    backend = -1
    children = 0
    """How many nodes read it."""
    views = 0
    """How many nodes are views of it."""
    settled = False
    """Whether it needs no place: it is a view, lies outside, or had its place already."""
    allocated = False
    """Whether it has a place now."""
    where = 0
    offset = 0
    size = 0
    """Bytes of its place, as its buffer rounds."""

    def __init__(
        self,
        kind: str,
        ne: Dims,
        op: str = NONE,
        src: "Sequence[Node]" = (),
        nb: Dims | None = None,
        base: "Node | None" = None,
    ) -> None:
        self.kind = kind
        self.ne = ne
        if nb is None:
            self.nb = strides(kind, ne)
        else:
            self.nb, self.packed = nb, False
        self.op = op
        self.src = src
        if base is not None:
            self.base, self.settled = base.base or base, True

    @property
    def elements(self) -> int:
        """How many elements it has."""
        ne = self.ne
        return ne[0] * ne[1] * ne[2] * ne[3]

    @property
    def nbytes(self) -> int:
        """Bytes from its first to its last element."""
        return extent(self.kind, self.ne, self.nb)

    @property
    def contiguous(self) -> bool:
        """Whether its elements lie one after another (dimensions of one element do not count)."""
        expected = strides(self.kind, self.ne)
        return self.nb == expected or all(
            self.ne[at] == 1 or self.nb[at] == expected[at] for at in range(4)
        )


@lru_cache(maxsize=1 << 14)
def strides(kind: str, ne: Dims) -> Dims:
    """Strides of a tensor whose elements lie one after another."""
    found = BY_NAME[kind]
    row = found.size * (ne[0] // found.block)
    return (found.size, row, row * ne[1], row * ne[1] * ne[2])


@lru_cache(maxsize=1 << 14)
def extent(kind: str, ne: Dims, nb: Dims) -> int:
    """Bytes from a tensor's first to its last element."""
    if not (ne[0] and ne[1] and ne[2] and ne[3]):
        return 0
    block = BY_NAME[kind].block
    row = ne[0] * nb[0] // block if block > 1 else ne[0] * nb[0]
    return row + (ne[1] - 1) * nb[1] + (ne[2] - 1) * nb[2] + (ne[3] - 1) * nb[3]


def row_size(kind: str, elements: int) -> int:
    """Bytes of so many elements in a row."""
    found = BY_NAME[kind]
    return found.size * elements // found.block


_ONES = (1, 1, 1, 1)


def dims(*ne: int) -> Dims:
    """Four dimensions, those not given are one."""
    return (ne + _ONES)[:4]  # type: ignore[return-value]


def like(op: str, a: Node, *others: Node | None) -> Node:
    """A tensor with the shape of ``a``, of ``a`` and others; a rope's or a softmax's optional operands too."""
    if not others:
        return Node(a.kind, a.ne, op, (a,))
    return Node(a.kind, a.ne, op, (a, *[one for one in others if one is not None]))


def mul_mat(weight: Node, x: Node) -> Node:
    """The product of a matrix with columns."""
    return Node("F32", (weight.ne[1], x.ne[1], x.ne[2], x.ne[3]), "mul_mat", (weight, x))


def mul_mat_id(weight: Node, x: Node, ids: Node) -> Node:
    """The product of the chosen experts' matrices with columns."""
    return Node("F32", (weight.ne[1], ids.ne[0], x.ne[2], 1), "mul_mat_id", (weight, x, ids))


def get_rows(table: Node, ids: Node) -> Node:
    """Rows of a table."""
    kind = "I32" if table.kind == "I32" else "F32"
    return Node(kind, (table.ne[0], ids.ne[0], ids.ne[1], ids.ne[2]), "get_rows", (table, ids))


def set_rows(target: Node, rows: Node, ids: Node) -> Node:
    """``target`` with some rows replaced: a view of it."""
    return Node(target.kind, target.ne, "set_rows", (rows, ids, target), target.nb, target)


def copy_into(source: Node, target: Node) -> Node:
    """``source`` written into ``target``: a view of the target."""
    return Node(target.kind, target.ne, "cpy", (source, target), target.nb, target)


def cast(a: Node, kind: str) -> Node:
    """A copy of another type; it is its own second operand."""
    made = Node(kind, a.ne, "cpy")
    made.src = (a, made)
    return made


def cont(a: Node, *ne: int) -> Node:
    """A copy whose elements lie one after another, in the same shape or another."""
    return Node(a.kind, dims(*ne) if ne else a.ne, "cont", (a,))


def reshape(a: Node, *ne: int) -> Node:
    """The same memory in another shape."""
    return Node(a.kind, dims(*ne), "reshape", (a,), None, a)


def view(a: Node, ne: tuple[int, ...], nb: tuple[int, ...] = ()) -> Node:
    """A part of the same memory; ``nb`` are the strides of the second and further dimensions."""
    full = dims(*ne)
    first, row, *_ = strides(a.kind, full)
    second = nb[0] if nb else row
    third = nb[1] if len(nb) > 1 else second * full[1]
    last = nb[2] if len(nb) > 2 else third * full[2]
    return Node(a.kind, full, "view", (a,), (first, second, third, last), a)


def permute(a: Node, *order: int) -> Node:
    """The same memory with dimensions in another order: dimension i goes to ``order[i]``."""
    ne, nb = [0] * 4, [0] * 4
    for at, to in enumerate(order):
        ne[to], nb[to] = a.ne[at], a.nb[at]
    return Node(
        a.kind, (ne[0], ne[1], ne[2], ne[3]), "permute", (a,), (nb[0], nb[1], nb[2], nb[3]), a
    )


def transpose(a: Node) -> Node:
    """The first two dimensions exchanged."""
    made = permute(a, 1, 0, 2, 3)
    made.op = "transpose"
    return made


def concat(a: Node, b: Node, dimension: int) -> Node:
    """Two tensors joined along a dimension."""
    ne = list(a.ne)
    ne[dimension] += b.ne[dimension]
    return Node(a.kind, (ne[0], ne[1], ne[2], ne[3]), "concat", (a, b))


def glu(a: Node, b: Node | None = None) -> Node:
    """A gated activation: of two tensors, or of the two halves of one."""
    ne = a.ne if b is not None else (a.ne[0] // 2, *a.ne[1:])
    return Node(a.kind, (ne[0], ne[1], ne[2], ne[3]), "glu", (a,) if b is None else (a, b))


def top_k(a: Node, count: int) -> Node:
    """The indices of the largest: a sort, and a view of its head."""
    order = Node("I32", a.ne, "argsort", (a,))
    return view(order, (count, *a.ne[1:]), order.nb[1:])


def sum_rows(a: Node) -> Node:
    """One number a row."""
    return Node(a.kind, (1, *a.ne[1:]), "sum_rows", (a,))


def made(op: str, ne: tuple[int, ...], *src: Node, kind: str = "F32") -> Node:
    """A tensor of an operation that follows no pattern."""
    return Node(kind, dims(*ne), op, src)
