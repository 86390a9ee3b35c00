"""Which blocks can be left out of a graph without changing what it takes?

Blocks repeat, and a planner that finds at the begin of a block all as it was at the begin of an equal one lays the
block as it laid that one. So of a run of equal blocks the first ones and the last are laid out; where the planner did
not stand alike when they began, more of the run is kept, in the end all of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from berth.estimator.graph.met import Steady, by_shapes, by_tensors, met
from berth.estimator.placing import Placing
from berth.estimator.shape import Layer, Shape
from berth.facts import Facts

GEMMA3N_SPARSE = 10
"""Blocks of gemma3n that are built otherwise than the rest."""
ROPE_STEP = {"llama4": 4}
"""Architectures of which every so many blocks one does not rotate."""
PERIODS = (1, 2, 3, 4, 5, 6, 7, 8)
BEGINS = (2, 3, 5, 6)
"""Repeats of a run that are kept before its last one, in the order in which they are tried."""
WHOLE = 1 << 30

Run = tuple[int, int]
"""The number of a run's first block, and of how many blocks it is a repeat."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A run of which the middle was left out, and the numbers of the blocks with which its kept repeats begin."""

    run: Run
    begins: tuple[int, ...]
    even: bool
    """Whether an even number of repeats was left out."""

    def stood(self, state: Callable[[int], object]) -> Steady:
        """Whether the planner stands at the last repeat as it would have with the middle. ``state`` is how it stood
        at the begin of a block.
        """
        *_, before, one, last = (state(number) for number in self.begins)
        if one in (last, before):
            return Steady.YES
        return Steady.BY_TWO if last == before else Steady.NO

    def suffices(self, stood: Steady) -> bool:
        """Whether so steady a run may lack its middle."""
        return stood is Steady.YES or (stood is Steady.BY_TWO and self.even)


def first_begin(run: Run, placing: Placing) -> int:
    """How many repeats are kept at first: a run of single blocks takes one more to become steady at the begin of the
    model, and one at the begin of one of several devices.
    """
    first, period = run
    if not first:
        return BEGINS[1] if period == 1 else BEGINS[0]
    edge = placing.blocks[first] != placing.blocks[first - 1]
    return BEGINS[1] if edge and len(placing.devices) > 1 else BEGINS[0]


def longer(begin: int) -> int:
    """The next number of repeats to try."""
    return next((more for more in BEGINS if more > begin), WHOLE)


def shortened(
    layers: Sequence[Layer], signs: Sequence[int], begin_of: Callable[[Run], int]
) -> tuple[tuple[Layer, ...], tuple[Cut, ...]]:
    """The layers without the middle of their runs, short periods first, and what was cut."""
    left, marks, cuts = list(layers), list(signs), list[Cut]()
    for period in PERIODS:
        at = 0
        while at < len(left):
            run = (left[at].number, period)
            begin, repeats = begin_of(run), _repeats(marks, at, period)
            gone = repeats - begin - 1
            if begin == BEGINS[-1]:
                gone -= gone % 2
            if gone * period < 2:
                at += 1
                continue
            first = at + (repeats - 1 - gone) * period
            kept = left[at:first:period]
            del left[first : first + gone * period], marks[first : first + gone * period]
            numbers = tuple(layer.number for layer in (*kept, left[first]))
            cuts.append(Cut(run, numbers, gone % 2 == 0))
            at = first + period
    there = {layer.number for layer in left}
    return tuple(left), tuple(cut for cut in cuts if there.issuperset(cut.begins))


def _repeats(signs: list[int], at: int, period: int) -> int:
    """How often the blocks of a period are there one after another."""
    end = at + period
    while end < len(signs) and signs[end] == signs[end - period]:
        end += 1
    return (end - at) // period


def sliding(shape: Shape) -> list[object]:
    """Which blocks slide, where that makes a difference to the planner."""
    return [layer.window for layer in shape.layers]


def outlasting(shape: Shape, placing: Placing) -> list[object]:
    """What is left of windows where blocks with one take the same memory as blocks without: whether, on a block's
    own device, both kinds of mask are still to be read. A mask's place is free after the last block that reads it.
    """
    found: list[object] = []
    left, owner = set[bool](), ""
    for layer in reversed(shape.layers):
        if placing.blocks[layer.number] != owner:
            left, owner = set(), placing.blocks[layer.number]
        left.add(layer.window)
        found.append(len(left))
    return found[::-1]


def signatures(
    facts: Facts, shape: Shape, placing: Placing, windows: Sequence[object]
) -> list[int]:
    """What each block looks like to the planner: a number for each kind of layer, tensors and places, the
    same in each placing of a model.

    ``windows`` is what :func:`sliding` or :func:`outlasting` says of each block.
    """
    known, devices = met(facts), bool(placing.devices)
    tensors = by_tensors(facts) if devices else by_shapes(facts)
    moved = _moved(facts, shape, placing) if placing.overrides and devices else {}
    found = []
    odds = _odd(facts, len(shape.layers))
    for layer, window, odd in zip(shape.layers, windows, odds, strict=True):
        at = layer.number
        places = (placing.blocks[at], placing.cache(at), *moved.get(at, ()))
        found.append(known.sign((layer.akin, type(window), window, odd, tensors[at], *places)))
    return found


def _moved(facts: Facts, shape: Shape, placing: Placing) -> dict[int, list[str | None]]:
    """Where overrides put the tensors of each block."""
    found: dict[int, list[str | None]] = {at: [] for at in range(shape.blocks)}
    for group in facts.tensors:
        for block in group.block_numbers():
            if block < shape.blocks:
                found[block].append(placing.override(group.named(block)))
    return found


def _odd(facts: Facts, count: int) -> list[bool]:
    """What the engine's code makes of a block's number alone."""
    step = ROPE_STEP.get(facts.architecture)
    if step:
        return [(number + 1) % step == 0 for number in range(count)]
    first = facts.integer("n_deepstack_layers") or 0
    if facts.architecture == "gemma3n":
        first = GEMMA3N_SPARSE
    return [number < first for number in range(count)]
