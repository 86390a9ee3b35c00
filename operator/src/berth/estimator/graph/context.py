"""What is built so far of a model's graph, for which batch and which cache?"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from berth.estimator.cache import cache_kind
from berth.estimator.effective import Effective
from berth.estimator.graph.tensor import NONE, Dims, Node, dims
from berth.estimator.placing import Placing
from berth.estimator.settings import Settings
from berth.estimator.shape import Layer, Shape
from berth.estimator.weights import OUTPUT_NORM_AS_INPUT, tensor_owner
from berth.facts import Facts, TensorGroup
from berth.facts.ggml import BY_NAME


class NoGraph(Exception):  # noqa: N818  it is an answer, not a fault
    """This file's graph cannot be laid out: it lacks a tensor or a number that the graph needs."""


@lru_cache(maxsize=1 << 12)
def _name(stem: str, suffix: str, *, in_block: bool) -> str:
    prefix = "blk.{}." if in_block else ""
    return f"{prefix}{stem}.{suffix}" if suffix else prefix + stem


@dataclass(slots=True)
class Batch:
    """The batch that the graph is built for: rows, sequences in it, rows of logits."""

    rows: int
    sequences: int
    outputs: int


@dataclass(slots=True)
class Context:
    """A graph under construction."""

    facts: Facts
    shape: Shape
    settings: Settings
    sizes: Effective
    placing: Placing
    batch: Batch
    nodes: list[Node] = field(default_factory=list)
    leafs: list[Node] = field(default_factory=list)
    inputs: dict[str, Node] = field(default_factory=dict)
    fused: list[tuple[int, Node]] = field(default_factory=list)
    """Fused attention nodes with their block."""
    begins: dict[int, int] = field(default_factory=dict)
    """How many nodes there were when each block began."""
    groups: dict[str, list[TensorGroup]] = field(default_factory=dict)
    held: dict[tuple[str, int], Node | None] = field(default_factory=dict)
    names: dict[tuple[str, str, bool], str] = field(default_factory=dict)
    """The full name of each stem that was asked for; empty where the file has no such tensor."""

    def __post_init__(self) -> None:
        for group in self.facts.tensors:
            self.groups.setdefault(group.name, []).append(group)

    def blocks(self) -> Iterator[Layer]:
        """The layers, in order; notes where each begins."""
        for layer in self.shape.layers:
            self.begins[layer.number] = len(self.nodes)
            yield layer

    @property
    def flash(self) -> bool:
        """Whether attention is fused."""
        return self.sizes.flash

    def number(self, key: str, default: int = 0) -> int:
        """A number of the header."""
        found = self.facts.integer(key)
        return default if found is None else found

    def positive(self, key: str) -> int:
        """A number of the header that must be there. Raises NoGraph."""
        found = self.number(key)
        if not 0 < found < 1 << 24:
            raise NoGraph(key)
        return found

    def real(self, key: str) -> float:
        """A real number of the header; 0 where it is missing."""
        value = self.facts.hparams.get(key, 0.0)
        return float(value) if isinstance(value, int | float) else 0.0

    def weight(self, stem: str, block: int = -1, suffix: str = "weight") -> Node | None:
        """A weight by its name without block and suffix (``attn_q``); None where the file has none."""
        asked = (stem, suffix, block >= 0)
        name = self.names.get(asked)
        if name is None:
            full = _name(stem, suffix, in_block=block >= 0)
            name = self.names[asked] = full if full in self.groups else ""
        return self.named(name, block) if name else None

    def named(self, name: str, block: int = -1) -> Node | None:
        """A weight by its name with ``{}`` for the block."""
        key = (name, block)
        try:
            return self.held[key]
        except KeyError:
            found = self.held[key] = self._find(name, block)
            return found

    def _find(self, name: str, block: int) -> Node | None:
        for group in self.groups.get(name, ()):
            if block < 0 or group.in_block(block):
                if group.kind not in BY_NAME or not group.shape:
                    raise NoGraph(name)
                owner = tensor_owner(group, block, self.shape, self.placing)
                node = self.stored(group.kind, dims(*group.shape), owner, weight=True)
                node.name, node.block = name, block
                return node
        return None

    def stored(self, kind: str, ne: Dims, owner: str, *, weight: bool = False) -> Node:
        """A tensor that lies outside the compute buffers: a weight, or a part of the cache."""
        node = Node(kind, ne)
        node.external, node.settled, node.weight, node.owner = True, True, weight, owner
        return node

    def output(self) -> Node | None:
        """The output matrix: its own, else the token embedding's copy on the output's device."""
        own = self.weight("output")
        if own is not None:
            return own
        table = self.weight("token_embd")
        if table is None:
            return None
        owner = self.placing.override("token_embd.weight") or self.placing.output
        return self.stored(table.kind, table.ne, owner, weight=True)

    def output_norm(self) -> Node | None:
        """The last norm's weight."""
        name = (
            "token_embd_norm" if self.shape.architecture in OUTPUT_NORM_AS_INPUT else "output_norm"
        )
        return self.weight(name)

    def input(self, name: str, kind: str, *ne: int) -> Node:
        """An input of the graph, one of each name."""
        if name not in self.inputs:
            node = Node(kind, dims(*ne))
            node.is_input, node.name = True, name
            self.inputs[name] = node
        return self.inputs[name]

    def expand(self, node: Node) -> None:
        """Add a node and all that it needs, operands first, to the order of execution; count who reads whom."""
        if node.seen:
            return
        node.seen = True
        for operand in node.src:
            operand.children += 1
            if operand.seen:
                continue
            if operand.op is NONE:
                operand.seen = True
                self.leafs.append(operand)
            else:
                self.expand(operand)
        if node.op is NONE:
            self.leafs.append(node)
            return
        if node.base is not None:
            node.base.views += 1
        self.nodes.append(node)

    def expand_all(self, nodes: Iterable[Node]) -> None:
        """Add several, in order."""
        for node in nodes:
            self.expand(node)

    def cache(self, layer: Layer, what: str) -> Node:
        """A layer's keys (``k``) or values (``v``) in the cache: row, cells, streams."""
        key = (f"cache_{what}", layer.number)
        found = self.held.get(key)
        if found is None:
            kind = cache_kind(
                self.settings.cache_type_k if what == "k" else self.settings.cache_type_v
            )
            width = layer.key if what == "k" else layer.value
            row = width * layer.kv_heads
            if what == "v" and self.sizes.turned:
                row = max(row, self.shape.widest_value)
            cells = self.cells(layer)
            found = self.stored(
                kind, (row, cells, self.sizes.streams, 1), self.placing.cache(layer.number)
            )
            self.held[key] = found
        return found

    def state(self, layer: Layer, what: str) -> Node:
        """A layer's recurrent state: ``r`` is what is shifted, ``s`` what is carried; a row for each slot."""
        key = (f"state_{what}", layer.number)
        found = self.held.get(key)
        if found is None:
            width = self.shape.state_r if what == "r" else self.shape.state_s
            found = self.stored(
                "F32", (width, self.sizes.slots, 1, 1), self.placing.cache(layer.number)
            )
            self.held[key] = found
        return found

    def cells(self, layer: Layer) -> int:
        """Cells of one stream of a layer's cache."""
        return self.sizes.window_cells if layer.window else self.sizes.cells

    def force_host(self, node: Node) -> None:
        """Have a node computed on the host, whatever its operands say."""
        node.forced = True
