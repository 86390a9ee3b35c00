"""Which backend computes each node, and what is copied between them?

The scheduler of ggml-backend.cpp: weights draw their operations, unassigned ones follow their neighbours,
and each run of nodes on one backend gets copies of what lies elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from berth.estimator.graph.context import Context
from berth.estimator.graph.tensor import NONE, VIEW_OPS, Node
from berth.estimator.settings import CPU, CPU_REPACK, Device

OFFLOAD_ROWS = 32
"""From so many rows on a CUDA device takes over products with weights of the host."""
UNDRAWN = frozenset({"rope", "flash_attn", *VIEW_OPS})
"""Operations that no weight draws to its device; views have none."""
COPIES = 4
"""Copies of each input in pipeline mode."""


@dataclass(slots=True)
class Split:
    """A run of nodes on one backend, and what is copied to it first."""

    backend: int
    inputs: list[Node] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)


def schedule(context: Context, devices: Sequence[Device]) -> tuple[list[Node], list[Node]]:
    """Leafs and nodes in the order in which they are planned, copies included, each with its backend."""
    if not devices:
        # The host is the last backend, and -1 what a node begins with.
        return context.leafs, context.nodes
    return _Scheduler(context, devices).run()


class _Scheduler:
    def __init__(self, context: Context, devices: Sequence[Device]) -> None:
        self.context = context
        self.devices = devices
        self.host = len(devices)
        self.names = {device.name: number for number, device in enumerate(devices)}
        self.names |= {CPU: self.host, CPU_REPACK: self.host}
        self.takers = [
            number
            for number, device in enumerate(devices)
            if device.rules == "cuda" and context.settings.op_offload
        ]
        """Devices that may take over products with weights of the host."""
        self.copies: dict[tuple[int, int], list[Node]] = {}

    def run(self) -> tuple[list[Node], list[Node]]:
        """The planned order."""
        self._assign_known()
        self._spread()
        count = COPIES if self._is_pipeline() else 1
        splits = self._split(count)
        return self._order(splits, count)

    def _is_pipeline(self) -> bool:
        placing, settings = self.context.placing, self.context.settings
        full = CPU not in placing.blocks and placing.output != CPU
        plain = settings.split_mode == "layer" and settings.kv_offload and not placing.overrides
        return len(self.devices) > 1 and full and plain

    def _assign_known(self) -> None:
        host, names, pins = self.host, self.names, self._pins()
        for leaf in self.context.leafs:
            leaf.backend = names.get(leaf.owner, host) if leaf.external else host
        for node in self.context.nodes:
            if node.base is not None and node.base.external:
                node.backend = names.get(node.base.owner, host)
            elif node.pin >= 0 and pins is not None:
                node.backend = pins[node.pin]
            elif node.op not in UNDRAWN:
                node.backend = host if node.forced else self._drawn(node)

    def _pins(self) -> list[int] | None:
        """Where the engine itself puts norms: with their block, for small batches or full offload; else None."""
        blocks = self.context.placing.blocks
        full = CPU not in blocks and self.context.placing.output != CPU
        if not full and self.context.batch.rows >= OFFLOAD_ROWS:
            return None
        return [self.names[owner] for owner in blocks]

    def _drawn(self, node: Node) -> int:
        """The backend to which a node's weight draws it; -1 where it has none."""
        for operand in node.src:
            if operand.weight:
                owner = self.names.get(operand.owner, self.host)
                if owner == self.host and self.takers and _is_taken_over(node):
                    return self.takers[0]
                return owner
        return -1

    def _spread(self) -> None:
        """Unassigned nodes follow their neighbours: those on accelerators first, down and up, then all."""
        nodes = [node for node in self.context.nodes if node.op not in VIEW_OPS]
        for order, skip_host in (
            (nodes, True),
            (nodes[::-1], True),
            (nodes, False),
            (nodes[::-1], False),
        ):
            current, left = -1, False
            for node in order:
                if node.backend >= 0:
                    current = -1 if skip_host and node.backend == self.host else node.backend
                elif current >= 0:
                    node.backend = current
                else:
                    left = True
            if not left:
                return

    def _assign_rest(self, node: Node) -> None:
        """The backend of a node that none drew and that has no neighbours, and of operands without one."""
        if node.base is not None and node.backend < 0:
            node.backend = node.base.backend
        for operand in node.src:
            if operand.backend < 0:
                operand.backend = operand.base.backend if operand.base is not None else node.backend
        if node.backend < 0:
            node.backend = 0

    def _reaches(self, node: Node, backend: int) -> bool:
        """Whether a backend can read a node where it lies; a view lies where its base does."""
        base = node.base or node
        if base.external:
            return self.names.get(base.owner, self.host) == backend
        return (node.backend if node.backend >= 0 else base.backend) == backend

    def _split(self, count: int) -> list[Split]:
        splits: list[Split] = []
        current, nodes = -1, list[Node]()
        for node in self.context.nodes:
            self._assign_rest(node)
            if node.op in VIEW_OPS:
                nodes.append(node)
                continue
            backend, away = node.backend, list[Node]()
            for operand in node.src:
                if operand.backend != backend and not self._reaches(operand, backend):
                    away.append(operand)
            if backend != current or (away and _needs_new(splits[-1], away)):
                # Views before the first run belong to it.
                nodes = nodes if current < 0 else []
                splits.append(Split(backend, nodes=nodes))
                current = backend
            if away:
                self._copy_operands(splits[-1], node, away, count)
            nodes.append(node)
        return splits

    def _copy_operands(self, split: Split, node: Node, away: list[Node], count: int) -> None:
        backend = split.backend
        for operand in away:
            key = (id(operand), backend)
            if key not in self.copies:
                self.copies[key] = [
                    _copy_of(operand, backend, kept=count > 1) for _ in range(count)
                ]
                split.inputs.append(operand)
            copy = self.copies[key][0]
            operand.children -= 1
            copy.children += 1
            node.src = tuple(copy if one is operand else one for one in node.src)

    def _order(self, splits: list[Split], count: int) -> tuple[list[Node], list[Node]]:
        nodes: list[Node] = []
        for split in splits:
            for operand in split.inputs:
                keeper = Node(operand.kind, operand.ne, NONE, (operand,), operand.nb, operand)
                keeper.backend = operand.backend
                operand.children += 1
                nodes += [keeper, self.copies[id(operand), split.backend][0]]
            nodes += split.nodes
        leafs = self._pipeline_leafs(splits) if count > 1 else []
        return leafs + self.context.leafs, nodes

    def _pipeline_leafs(self, splits: list[Split]) -> list[Node]:
        """In pipeline mode every input of the graph and of each run is there four times, all the time."""
        leafs: list[Node] = []
        for leaf in self.context.leafs:
            if leaf.is_input:
                leaf.is_output = True
                leafs += [
                    leaf,
                    *(_copy_of(leaf, leaf.backend, kept=True) for _ in range(COPIES - 1)),
                ]
        for split in splits:
            for operand in split.inputs:
                leafs += self.copies[id(operand), split.backend]
        return leafs


def _needs_new(split: Split, away: list[Node]) -> bool:
    """A weight from elsewhere begins a new run, so that the one before it can be forgotten."""
    return bool(away and split.inputs) and any(one.weight for one in away)


def _copy_of(node: Node, backend: int, *, kept: bool) -> Node:
    made = Node(node.kind, node.ne, NONE, (), node.nb)
    made.backend = backend
    made.is_input = made.is_output = kept
    return made


def _is_taken_over(node: Node) -> bool:
    """Whether a CUDA device computes a node whose weight is the host's."""
    op = node.op
    if op == "mul_mat":
        return node.ne[1] >= OFFLOAD_ROWS
    if op == "get_rows":
        return False
    if op in {"mul_mat_id", "rope"}:
        return node.ne[2] >= OFFLOAD_ROWS
    return node.ne[1] * node.ne[2] * node.ne[3] >= OFFLOAD_ROWS
