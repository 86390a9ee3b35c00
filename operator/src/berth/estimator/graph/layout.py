"""What do the compute buffers of this model take, by laying out its graph?"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from berth.estimator.effective import Effective
from berth.estimator.graph import delta, gemma3n, hybrid, rwkv, special, t5
from berth.estimator.graph.context import Batch, Context, NoGraph
from berth.estimator.graph.decoder import HABITS, build
from berth.estimator.graph.met import Answer, Key, met
from berth.estimator.graph.plan import Planner, State
from berth.estimator.graph.shorten import (
    BEGINS,
    Cut,
    Run,
    first_begin,
    longer,
    outlasting,
    shortened,
    signatures,
    sliding,
)
from berth.estimator.graph.split import OFFLOAD_ROWS, schedule
from berth.estimator.placing import Placing
from berth.estimator.settings import CPU, Settings
from berth.estimator.shape import Layer, Shape
from berth.facts import Facts

HOST_ALIGNMENT = 32

SPECIAL: dict[str, Callable[[Context], None]] = {
    "deepseek2": special.latent,
    "gemma4": special.gemma4,
    "gemma3n": gemma3n.build,
    "bert": special.encoder,
    "nomic-bert": special.encoder,
    "nomic-bert-moe": special.encoder,
    "jina-bert-v3": special.encoder,
    "rwkv6": rwkv.rwkv,
    "rwkv7": rwkv.rwkv,
    "t5": t5.decoder,
    "qwen3next": delta.qwen3next,
    "qwen35": delta.qwen3next,
    "qwen35moe": delta.qwen3next,
    **hybrid.BUILDERS,
}


def known(architecture: str) -> bool:
    """Whether the graph of an architecture can be laid out."""
    return architecture in SPECIAL or architecture in HABITS


def layout(
    facts: Facts, shape: Shape, settings: Settings, sizes: Effective, placing: Placing
) -> dict[str, int]:
    """Bytes of the compute buffer of each owner. Raises NoGraph where it cannot be laid out."""
    windows = _windows(shape, settings, sizes, placing)
    signs, begins = signatures(facts, shape, placing, windows), dict[Run, int]()

    def begin_of(run: Run) -> int:
        return begins.get(run) or first_begin(run, placing)

    about = _about(facts, settings, sizes, placing)
    while True:
        layers, cuts = shortened(shape.layers, signs, begin_of)
        key = (about, _looks(facts, layers, signs), _cut_at(layers, cuts))
        answers = met(facts).answers
        if key not in answers:
            short = replace(shape, layers=layers)
            answers[key] = _planned(_context(facts, short, settings, sizes, placing), cuts)
        found, stood = answers[key]
        unsteady = [cut.run for cut, how in zip(cuts, stood, strict=True) if not cut.suffices(how)]
        if not unsteady:
            return dict(found)
        begins |= {run: longer(begin_of(run)) for run in unsteady}


def _about(facts: Facts, settings: Settings, sizes: Effective, placing: Placing) -> Key:
    """All that decides what a graph of given blocks takes."""
    kinds = (settings.cache_type_k, settings.cache_type_v, settings.pooling, settings.embeddings)
    ways = (settings.kv_offload, settings.op_offload, settings.split_mode, settings.build)
    devices = tuple((device.name, device.rules) for device in placing.devices)
    alone = tuple(
        placing.override(group.name)
        for group in facts.tensors
        if placing.overrides and not group.blocks
    )
    return (kinds, ways, sizes, devices, frozenset(placing.blocks), placing.output, alone)


def _looks(facts: Facts, layers: Sequence[Layer], signs: Sequence[int]) -> Key:
    """What the blocks of a graph are."""
    step = max(facts.integer("rescale_every_n_layers") or 0, 1)
    return tuple((signs[one.number], one.alike, one.number % step) for one in layers)


def _cut_at(layers: Sequence[Layer], cuts: Sequence[Cut]) -> Key:
    """Where in a graph blocks are left out."""
    at = {layer.number: place for place, layer in enumerate(layers)}
    return tuple(tuple(at[number] for number in cut.begins) for cut in cuts)


def _windows(shape: Shape, settings: Settings, sizes: Effective, placing: Placing) -> list[object]:
    """What windows make of each block for the planner.

    A fused attention over halves takes the same memory however many cells it reads. Between host and devices the
    masks are copied one by one, so there their order counts.
    """
    halves = {settings.cache_type_k.upper(), settings.cache_type_v.upper()} == {"F16"}
    habit = HABITS.get(shape.architecture)
    same = sizes.flash and halves and habit is not None and not habit.rope_when_sliding
    still = not placing.devices or (placing.kv_offload and not placing.overrides)
    apart = bool(placing.devices) and CPU in placing.blocks
    kept = all(layer.keeps for layer in shape.layers)
    return outlasting(shape, placing) if same and still and kept and not apart else sliding(shape)


def layout_whole(
    facts: Facts, shape: Shape, settings: Settings, sizes: Effective, placing: Placing
) -> dict[str, int]:
    """What :func:`layout` is held to: the same, with every block laid out."""
    return _planned(_context(facts, shape, settings, sizes, placing), ())[0]


def _context(
    facts: Facts, shape: Shape, settings: Settings, sizes: Effective, placing: Placing
) -> Context:
    batch = Batch(sizes.rows, sizes.slots, sizes.graph_outputs)
    return _built(Context(facts, shape, settings, sizes, placing, batch))


def _planned(context: Context, cuts: Sequence[Cut]) -> Answer:
    """Bytes by owner, and how each cut stood."""
    nodes = {number: context.nodes[context.begins[number]] for cut in cuts for number in cut.begins}
    for node in nodes.values():
        node.watched = True
    devices = context.placing.devices
    planner = Planner([*(device.alignment for device in devices), HOST_ALIGNMENT])
    found = planner.run(*schedule(context, devices))

    def state(number: int) -> State:
        return planner.states[id(nodes[number])]

    names = [*(device.name for device in devices), CPU]
    return dict(zip(names, found, strict=True)), [cut.stood(state) for cut in cuts]


def attention_fuses(
    facts: Facts, shape: Shape, settings: Settings, sizes: Effective, placing: Placing
) -> bool:
    """Whether ``auto`` keeps flash attention: only if every layer attends on the layer's own device.

    The engine asks the scheduler with a graph of one token a slot. Raises NoGraph as :func:`layout` does.
    """
    if _attends_at_home(facts, shape, sizes, placing):
        return True
    signs = signatures(facts, shape, placing, sliding(shape))
    layers, _ = shortened(shape.layers, signs, lambda _: BEGINS[0])
    key = (_about(facts, settings, sizes, placing), _looks(facts, layers, signs))
    fused = met(facts).fused
    if key not in fused:
        fused[key] = _all_fuse(facts, replace(shape, layers=layers), settings, sizes, placing)
    return fused[key]


def _all_fuse(
    facts: Facts, shape: Shape, settings: Settings, sizes: Effective, placing: Placing
) -> bool:
    batch = Batch(sizes.slots, sizes.slots, sizes.slots)
    context = Context(facts, shape, settings, sizes, placing, batch)
    names = [*(device.name for device in placing.devices), CPU]
    schedule(_built(context), placing.devices)
    return all(names[node.backend] == placing.blocks[block] for block, node in context.fused)


def _attends_at_home(facts: Facts, shape: Shape, sizes: Effective, placing: Placing) -> bool:
    """Whether nothing could draw a layer's attention away from it: its weights and its own cache lie with it, and
    no device takes over products of so few rows.
    """
    still = placing.kv_offload and sizes.slots < OFFLOAD_ROWS
    if not still or not all(layer.attends and layer.keeps for layer in shape.layers):
        return False
    if not placing.overrides:
        return True
    others = (group for group in facts.tensors if "ffn_" not in group.name)
    return not any(
        placing.override(group.named(block)) for group in others for block in group.block_numbers()
    )


def is_whole(placing: Placing) -> bool:
    """Whether one device has every block, with its cache and all its weights: then all attend where they lie."""
    first = placing.blocks[0] if placing.blocks else CPU
    alone = first != CPU and set(placing.blocks) == {first} == {placing.output}
    return alone and placing.kv_offload and not placing.overrides


MOST_LAYERS, MOST_EXPERTS, MOST_SLOTS = 512, 256, 256
"""No model in the field is larger, and the engine takes no more slots; a graph of a stranger's numbers must stay small."""


def _built(context: Context) -> Context:
    """The graph. Raises NoGraph on numbers that no real model has."""
    shape = context.shape
    sound = (
        0 < len(shape.layers) <= MOST_LAYERS
        and shape.experts_used <= MOST_EXPERTS
        and shape.embedding > 0
    )
    attending = all(
        layer.heads > 0 and layer.key > 0 and layer.value > 0
        for layer in shape.layers
        if layer.attends
    )
    kept = (
        shape.encoder
        or any(layer.keeps for layer in shape.layers)
        or not any(layer.attends for layer in shape.layers)
    )
    if not sound or not attending or not kept or context.sizes.slots > MOST_SLOTS:
        raise NoGraph("the header's numbers")
    builder = SPECIAL.get(context.shape.architecture)
    if builder is not None:
        builder(context)
    else:
        build(context, HABITS[context.shape.architecture])
    return context
