"""Where does each tensor of a graph lie, and how much memory does that take?

The planner of ggml-alloc.c: inputs first, then each node in order; the best fitting gap, else the end; a
result takes an operand's place where the operation allows it; an operand's place is free after its last use.
"""

from berth.estimator.graph.tensor import INPLACE, NONE, Node
from berth.facts.ggml import QUANTISED, row_bytes


class Space:
    """One buffer's memory while it is planned: gaps in order of their place, and how far it grew."""

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self.gaps: list[list[int]] = [[0, 1 << 62]]
        self.most = 0

    def size(self, node: Node) -> int:
        """Bytes that a node takes here."""
        nbytes = node.nbytes
        if self.alignment == 128 and node.op == "flash_attn":
            return _flash_bytes(node, nbytes)
        if self.alignment == 128 and node.kind in QUANTISED and node.ne[0] % 512:
            nbytes += row_bytes(node.kind, 512 - node.ne[0] % 512)
        return -(-nbytes // self.alignment) * self.alignment

    def take(self, size: int) -> int:
        """A place of ``size`` bytes: the smallest gap that holds it, the last of equal ones, else the end."""
        best, best_size = -1, 1 << 63
        for at in range(len(self.gaps) - 1):
            if size <= self.gaps[at][1] <= best_size:
                best, best_size = at, self.gaps[at][1]
        gap = self.gaps[best]
        place = gap[0]
        gap[0] += size
        gap[1] -= size
        if gap[1] == 0:
            del self.gaps[best]
        self.most = max(self.most, place + size)
        return place

    def give(self, place: int, size: int) -> None:
        """Make a place free again, joined with the gaps beside it."""
        for at, gap in enumerate(self.gaps):
            if gap[0] + gap[1] == place:
                gap[1] += size
                if at + 1 < len(self.gaps) and gap[0] + gap[1] == self.gaps[at + 1][0]:
                    gap[1] += self.gaps[at + 1][1]
                    del self.gaps[at + 1]
                return
            if place + size == gap[0]:
                gap[0] = place
                gap[1] += size
                if at > 0 and self.gaps[at - 1][0] + self.gaps[at - 1][1] == place:
                    self.gaps[at - 1][1] += gap[1]
                    del self.gaps[at]
                return
            if gap[0] > place:
                self.gaps.insert(at, [place, size])
                return


def _flash_bytes(node: Node, nbytes: int) -> int:
    """CUDA's attention keeps halves of keys and values that are stored otherwise behind its result."""
    keys, values = node.src[1], node.src[2]
    end = -(-nbytes // 128) * 128
    if keys.kind != "F16":
        end = -(-(end + 2 * keys.elements) // 128) * 128
    if values.kind != "F16" and values.base is not keys.base:
        end += 2 * values.elements
    return -(-end // 128) * 128


class Planner:
    """Plans one graph over the buffers of its backends."""

    def __init__(self, alignments: list[int]) -> None:
        self.spaces = [Space(alignment) for alignment in alignments]

    def run(self, leafs: list[Node], nodes: list[Node]) -> list[int]:
        """The bytes of each backend's buffer."""
        for leaf in leafs:
            self._allocate(leaf, leaf.backend)
        self._count(nodes)
        for node in nodes:
            for operand in node.src:
                self._allocate(operand, node.backend)
            self._allocate(node, node.backend)
            for operand in node.src:
                self._used(operand)
        return [space.most for space in self.spaces]

    def _count(self, nodes: list[Node]) -> None:
        for node in nodes:
            if node.base is not None and node.op != NONE:
                node.base.views += 1
            if node.is_input:
                self._allocate(node, node.backend)
            for operand in node.src:
                operand.children += 1
                if operand.is_input:
                    self._allocate(operand, node.backend)

    def _allocate(self, node: Node, backend: int) -> None:
        if node.external or node.allocated or node.base is not None:
            return
        node.allocated = True
        if node.op in INPLACE and self._reuse(node):
            return
        node.where = backend
        space = self.spaces[backend]
        node.offset = space.take(space.size(node))

    def _reuse(self, node: Node) -> bool:
        for operand in node.src:
            # A view is never "allocated" to the planner, so it is never taken over; nor is an output.
            if not operand.allocated or operand.is_output:
                continue
            if operand.kind != node.kind or operand.ne != node.ne or operand.nb != node.nb:
                continue
            if operand.children == 1 and operand.views == 0:
                self._replace(node, operand)
                return True
        return False

    def _replace(self, node: Node, operand: Node) -> None:
        """``node`` takes the place of ``operand``; what is left over at its end is free."""
        node.where, node.offset = operand.where, operand.offset
        operand.allocated = False
        space = self.spaces[node.where]
        size, left = space.size(node), space.size(operand)
        if left > size:
            space.give(node.offset + size, left - size)

    def _used(self, operand: Node) -> None:
        operand.children -= 1
        if operand.children or operand.views:
            return
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
        space = self.spaces[node.where]
        space.give(node.offset, space.size(node))
        node.allocated = False
