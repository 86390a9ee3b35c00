"""How large are the buffers in which the engine computes?

A closed form, fitted to none and derived from the largest tensors that live at once in llama.cpp's graph
(notes on memory, section 3.6). For the architectures that `graph` lays out, that layout is used instead.
"""

from dataclasses import dataclass

from berth.estimator.architectures import FOLLOWED
from berth.estimator.cache import cache_kind
from berth.estimator.effective import Effective
from berth.estimator.graph.context import NoGraph
from berth.estimator.graph.layout import known, layout
from berth.estimator.placing import Placing
from berth.estimator.settings import CPU, CPU_REPACK, Settings
from berth.estimator.shape import Layer, Shape
from berth.estimator.weights import Sized
from berth.facts import Facts
from berth.facts.ggml import BY_NAME, QUANTISED

ROTATION = 81_920
"""Bytes of the rotations that a quantised cache needs: 64² + 128² floats."""


@dataclass(frozen=True, slots=True)
class Closed:
    """Bytes of the compute buffer: all on one device, and its split when all layers are on an accelerator."""

    whole: int
    device: int
    host: int


def closed_form(facts: Facts, shape: Shape, settings: Settings, sizes: Effective) -> Closed:
    """The compute buffers by formula."""
    rows, width = sizes.rows, shape.embedding
    inputs = _inputs(shape, settings, sizes)
    per_layer = facts.integer("embedding_length_per_layer_input") or 0
    extra = per_layer * (shape.blocks + 2) if per_layer else 0
    logits = 4 * sizes.outputs * shape.vocabulary
    work = (
        4
        * rows
        * (
            3 * width
            + max((_work(facts, shape, layer, sizes) for layer in shape.layers), default=0)
            + extra
        )
    )
    work = max(work, logits + 4 * rows * width)
    if shape.mla and not sizes.flash:
        work += 2 * (facts.integer("attention.kv_lora_rank") or 0) * sizes.cells * sizes.streams
    host = (
        inputs
        + 8 * width * rows
        + (4 * rows * (per_layer * shape.blocks + width) if per_layer else 0)
    )
    return Closed(inputs + work, inputs + work - 4 * width * rows, host)


def _inputs(shape: Shape, settings: Settings, sizes: Effective) -> int:
    rows = sizes.rows
    total = 8 * shape.embedding * rows + 24 * rows
    for cells in _masks(shape, sizes):
        value = 1 if sizes.flash else shape.widest_value
        total += cells * rows * (2 if sizes.flash else 4) + 8 * rows
        total += 0 if shape.mla or shape.encoder else 8 * rows * value
    kinds = {cache_kind(kind) for kind in (settings.cache_type_k, settings.cache_type_v)}
    if kinds & QUANTISED and _masks(shape, sizes) and not shape.mla:
        total += ROTATION
    return total + _converted(shape, settings, sizes)


def _masks(shape: Shape, sizes: Effective) -> list[int]:
    """Cells of each attention mask: of the full layers, of the sliding ones."""
    if shape.encoder:
        return [sizes.rows] * (2 if shape.slides else 1)
    attending = [layer for layer in shape.layers if layer.attends]
    cells = [sizes.cells] if any(not layer.window for layer in attending) else []
    return cells + ([sizes.window_cells] if any(layer.window for layer in attending) else [])


def _converted(shape: Shape, settings: Settings, sizes: Effective) -> int:
    """A float32 cache is turned into halves for flash attention, one layer at a time."""
    if not sizes.flash or shape.encoder:
        return 0
    cells = sizes.cells * sizes.streams
    keys = max((layer.key * layer.kv_heads for layer in shape.layers if layer.keeps), default=0)
    wide = [(settings.cache_type_k, keys), (settings.cache_type_v, shape.widest_value)]
    return sum(2 * cells * width for kind, width in wide if BY_NAME[cache_kind(kind)].name == "F32")


def _work(facts: Facts, shape: Shape, layer: Layer, sizes: Effective) -> int:
    """Elements a row that live at once in one layer, beyond the residual stream."""
    forward = max(_forward(facts, shape, layer), 0)
    attention = _attention(facts, shape, layer, sizes) if layer.attends else 0
    return max(forward, attention, _recurrent(facts, shape, layer, sizes) if layer.recurrent else 0)


def _forward(facts: Facts, shape: Shape, layer: Layer) -> int:
    names = {group.name for group in facts.tensors if layer.number in group.block_numbers()}
    gated = any("ffn_gate" in name and "exps" not in name and "inp" not in name for name in names)
    if any("_exps" in name for name in names):
        stack = shape.experts_used * shape.expert_feed_forward
        joined = shape.experts_used * shape.embedding
        return 3 * stack + (joined if joined > 2 * stack else 0)
    fused = (
        2 if "blk.{}.ffn_up.weight" in names and not gated and shape.architecture == "phi3" else 0
    )
    return (3 if gated else 1 + fused) * layer.feed_forward


def _attention(facts: Facts, shape: Shape, layer: Layer, sizes: Effective) -> int:
    query = layer.heads * layer.key
    cells = sizes.rows if shape.encoder else sizes.window_cells if layer.window else sizes.cells
    if shape.mla:
        lora = facts.integer("attention.kv_lora_rank") or 0
        rope = facts.integer("rope.dimension_count") or 0
        key = facts.integer("attention.key_length_mla") or 0
        work = layer.heads * (key + 2 * rope + 2 * lora)
        return work + (0 if sizes.flash else layer.heads * cells)
    if sizes.flash:
        return 2 * query + layer.kv_heads * (layer.key + layer.value)
    times = 2 if query > shape.embedding else 1
    times += {"bert": 2, "nomic-bert": 4, "qwen3next": 2}.get(shape.architecture, 0)
    return cells * layer.heads + times * query


def _recurrent(facts: Facts, shape: Shape, layer: Layer, sizes: Effective) -> int:
    number = facts.integer
    inner, groups, state = (
        number(f"ssm.{key}") or 0 for key in ("inner_size", "group_count", "state_size")
    )
    heads = number("ssm.time_step_rank") or 0
    carried = -(-(max(sizes.slots - 1, 1) * shape.state_s) // max(sizes.rows, 1))
    carried += -(-(sizes.slots * shape.state_r) // max(sizes.rows, 1))
    if number("shortconv.l_cache") or number("wkv.head_size"):
        return 4 * shape.embedding + (carried if number("wkv.head_size") else 0)
    mixed = inner + 2 * groups * state
    if shape.architecture in {"qwen3next", "qwen35", "qwen35moe"}:
        return 3 * mixed + 4 * inner + carried
    if groups:
        return (2 * inner + 2 * groups * state + heads) + 2 * mixed + inner + carried
    return 5 * inner + carried


@dataclass(frozen=True, slots=True)
class ComputeBytes:
    """Compute buffers by owner; ``exact`` where the graph was laid out."""

    by_owner: dict[str, int]
    exact: bool


def compute_buffers(
    facts: Facts,
    shape: Shape,
    settings: Settings,
    sizes: Effective,
    placing: Placing,
    sized: list[Sized],
) -> ComputeBytes:
    """The compute buffer of each owner: by the graph where it can be laid out, else by the formula."""
    if known(shape.architecture):
        try:
            return ComputeBytes(layout(facts, shape, settings, sizes, placing), exact=True)
        except NoGraph:
            pass
    closed = closed_form(facts, shape, settings, sizes)
    used = [
        device for device in placing.devices if device.name in {*placing.blocks, placing.output}
    ]
    if shape.architecture not in FOLLOWED:
        # Nothing is known of its graph: twice the largest tensors of a transformer of these widths.
        closed = Closed(2 * closed.whole, 2 * closed.device, 2 * closed.host)
    if not used:
        return ComputeBytes({CPU: closed.whole}, exact=False)
    whole = CPU not in placing.blocks
    extra = _taken_over(placing, settings, sized)
    scratch = _scratch(shape, settings, sizes)
    found = {CPU: closed.host if whole and not _host_weights(sized) else closed.whole}
    for device in used:
        found[device.name] = closed.device + (extra + scratch if device.rules == "cuda" else 0)
    return ComputeBytes(found, exact=False)


def _host_weights(sized: list[Sized]) -> bool:
    return any(one.owner in {CPU, CPU_REPACK} and one.group.blocks for one in sized)


def _taken_over(placing: Placing, settings: Settings, sized: list[Sized]) -> int:
    """The largest weight of a host layer, which a GPU copies to itself for large batches."""
    if not settings.op_offload:
        return 0
    host = [
        one.group
        for one in sized
        if one.owner == CPU and one.group.blocks and len(one.group.shape) > 1
    ]
    return max((group.nbytes for group in host), default=0)


def _scratch(shape: Shape, settings: Settings, sizes: Effective) -> int:
    """Halves of one layer's quantised keys and values, which CUDA's flash attention reads."""
    if not sizes.flash:
        return 0
    total = 0
    widths = [max((layer.key * layer.kv_heads for layer in shape.layers if layer.keeps), default=0)]
    widths.append(0 if shape.mla else shape.widest_value)
    for kind, width in zip((settings.cache_type_k, settings.cache_type_v), widths, strict=True):
        if cache_kind(kind) in QUANTISED:
            total += 2 * width * sizes.context
    return total
