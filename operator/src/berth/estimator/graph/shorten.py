"""Which blocks can be left out of a graph without changing what it takes?

Blocks repeat. After a few repeats the planner lays each one where the one before it lay, so the middle of a
long run adds nothing. A run keeps its first and last `KEPT` repeats; the measured cases hold this to the byte.
"""

from berth.estimator.placing import Placing
from berth.estimator.shape import Layer, Shape
from berth.facts import Facts

KEPT = 3
GEMMA3N_SPARSE = 10
"""Blocks of gemma3n that are built otherwise than the rest."""
PERIODS = (1, 2, 3, 4, 5, 6, 7, 8)

Signature = tuple[object, ...]


def shortened(facts: Facts, shape: Shape, placing: Placing) -> tuple[Layer, ...]:
    """The layers without the middle of their longest runs."""
    layers = list(shape.layers)
    signs = _signatures(facts, shape, placing)
    at = 0
    while at < len(layers):
        period, repeats = _run(signs, at)
        if repeats > 2 * KEPT:
            gone = (repeats - 2 * KEPT) * period
            begin = at + KEPT * period
            del layers[begin : begin + gone], signs[begin : begin + gone]
            at += 2 * KEPT * period
        else:
            at += 1
    return tuple(layers)


def _run(signs: list[Signature], at: int) -> tuple[int, int]:
    """The period at a place that repeats over most blocks, and how often; the shortest of equal ones."""
    best = (1, 1)
    for period in PERIODS:
        end = at + period
        while end < len(signs) and signs[end] == signs[end - period]:
            end += 1
        repeats = (end - at) // period
        if repeats * period > best[0] * best[1] and repeats > 2 * KEPT:
            best = (period, repeats)
    return best


def _signatures(facts: Facts, shape: Shape, placing: Placing) -> list[Signature]:
    """What a block looks like to the planner: its layer, its tensors and where they lie."""
    parts: list[list[object]] = [[] for _ in range(shape.blocks)]
    with_kinds = bool(placing.devices)
    for group in facts.tensors:
        mark = (group.name, group.shape, group.kind) if with_kinds else (group.name, group.shape)
        owners = bool(placing.overrides) and with_kinds
        for block in group.block_numbers():
            if block < len(parts):
                parts[block].append(
                    (mark, placing.override(group.named(block))) if owners else mark
                )
    if shape.architecture == "gemma3n":
        for layer in shape.layers[:GEMMA3N_SPARSE]:
            parts[layer.number].append("sparse")
    return [_signature(layer, parts[layer.number], placing) for layer in shape.layers]


def _signature(layer: Layer, parts: list[object], placing: Placing) -> Signature:
    return (
        layer.heads, layer.kv_heads, layer.key, layer.value, layer.window, layer.attends, layer.keeps,
        layer.recurrent, layer.feed_forward, placing.blocks[layer.number], placing.cache(layer.number), *parts,
    )  # fmt: skip
