"""Where does each tensor of a graph lie, and how much memory does that take?

The planner of ggml-alloc.c: inputs first, then each node in order; the best fitting gap, else the end; a
result takes an operand's place where the operation allows it; an operand's place is free after its last use.
"""

from collections.abc import Sequence

from berth.estimator.graph.tensor import INPLACE, Node
from berth.facts.ggml import QUANTISED, row_bytes


class Space:
    """One buffer's memory while it is planned: gaps in order of their place, and how far it grew."""

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self.gaps: list[list[int]] = [[0, 1 << 62]]
        self.most = 0

    def size(self, node: Node) -> int:
        """Bytes that a node takes here."""
        # What lies packed ends where its last dimension does.
        nbytes = node.nb[3] * node.ne[3] if node.packed else node.nbytes
        if self.alignment == 128:
            if node.op == "flash_attn":
                return _flash_bytes(node, nbytes)
            if node.kind in QUANTISED and node.ne[0] % 512:
                nbytes += row_bytes(node.kind, 512 - node.ne[0] % 512)
        return -(-nbytes // self.alignment) * self.alignment

    def take(self, size: int) -> int:
        """A place of ``size`` bytes: the smallest gap that holds it, the last of equal ones, else the end."""
        gaps = self.gaps
        best, best_size = gaps[-1], _ENDLESS
        for gap in gaps:
            if size <= gap[1] <= best_size:
                best, best_size = gap, gap[1]
        place = best[0]
        if best_size == size:
            gaps.remove(best)
        else:
            best[0] += size
            best[1] -= size
        if place + size > self.most:
            self.most = place + size
        return place

    def give(self, place: int, size: int) -> None:
        """Make a place free again, joined with the gaps beside it."""
        gaps, end = self.gaps, place + size
        for at, gap in enumerate(gaps):
            until = gap[0] + gap[1]
            if until < place:
                continue
            if until == place:
                gap[1] += size
                if gaps[at + 1][0] == end:
                    gap[1] += gaps.pop(at + 1)[1]
                return
            if gap[0] == end:
                gap[0] = place
                gap[1] += size
                return
            if gap[0] > place:
                gaps.insert(at, [place, size])
                return


_ENDLESS = 1 << 61
"""Less than the last gap ever has, which is taken only where no other holds the size."""


def _flash_bytes(node: Node, nbytes: int) -> int:
    """CUDA's attention keeps halves of keys and values that are stored otherwise behind its result."""
    keys, values = node.src[1], node.src[2]
    end = -(-nbytes // 128) * 128
    if keys.kind != "F16":
        end = -(-(end + 2 * keys.elements) // 128) * 128
    if values.kind != "F16" and values.base is not keys.base:
        end += 2 * values.elements
    return -(-end // 128) * 128


State = tuple[tuple[int, int, int], ...]


def _state(leafs: Sequence[Node], nodes: Sequence[Node]) -> State:
    return tuple(
        (node.where, node.offset, node.size) for node in (*leafs, *nodes) if node.allocated
    )


class Planner:
    """Plans one graph over the buffers of its backends."""

    def __init__(self, alignments: list[int]) -> None:
        self.spaces = [Space(alignment) for alignment in alignments]
        self.states: dict[int, State] = {}
        """How it stood before each watched node, by the node's identity: what lives, and where."""

    def run(self, leafs: Sequence[Node], nodes: Sequence[Node]) -> list[int]:
        """The bytes of each backend's buffer."""
        allocate, done = self._allocate, self._done
        for leaf in leafs:
            if not leaf.settled:
                allocate(leaf, leaf.backend)
        for at, node in enumerate(nodes):
            if node.watched:
                self.states[id(node)] = _state(leafs, nodes[:at])
            operands = node.src
            for operand in operands:
                if not operand.settled:
                    allocate(operand, node.backend)
            if not node.settled:
                allocate(node, node.backend)
            for operand in operands:
                operand.children -= 1
                if not (operand.children or operand.views or operand.external):
                    done(operand)
        return [space.most for space in self.spaces]

    def _allocate(self, node: Node, backend: int) -> None:
        node.allocated = node.settled = True
        if node.op in INPLACE:
            for operand in node.src:
                # A view is never "allocated" to the planner, so it is never taken over; nor is an output.
                if (
                    operand.allocated
                    and operand.ne == node.ne
                    and operand.children == 1
                    and not operand.views
                    and operand.kind == node.kind
                    and operand.nb == node.nb
                    and not operand.is_output
                ):
                    self._replace(node, operand)
                    return
        node.where = backend
        space = self.spaces[backend]
        node.size = space.size(node)
        node.offset = space.take(node.size)

    def _replace(self, node: Node, operand: Node) -> None:
        """``node`` takes the place of ``operand``; what is left over at its end is free."""
        node.where, node.offset = operand.where, operand.offset
        operand.allocated = False
        space = self.spaces[node.where]
        node.size = space.size(node)
        if operand.size > node.size:
            space.give(node.offset + node.size, operand.size - node.size)

    def _done(self, operand: Node) -> None:
        """Frees what was used for the last time: the operand, or the base of a view."""
        base = operand.base
        if base is not None:
            base.views -= 1
            if base.views == 0 and base.children == 0 and base.allocated:
                self._free(base)
        elif operand.allocated:
            self._free(operand)

    def _free(self, node: Node) -> None:
        if node.is_output:
            return
        self.spaces[node.where].give(node.offset, node.size)
        node.allocated = False
