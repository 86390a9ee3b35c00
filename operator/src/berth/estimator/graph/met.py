"""What was worked out before of a model's graph, whatever its placing?

A planner asks for many placings of one model. What its blocks hold does not change with them, and two placings that
keep the same blocks of it in a shortened graph take the same.
"""

from dataclasses import dataclass, field
from enum import Enum

from berth.estimator.same import ByFacts
from berth.facts import MAX_BLOCKS, Facts

MOST_SIGNS = 4096
"""Looks of one model's blocks that are remembered; then all of it is forgotten."""


class Steady(Enum):
    """Whether a run's repeats begin alike behind the kept ones."""

    NO = 0
    BY_TWO = 1
    """Every other one does."""
    YES = 2


Answer = tuple[dict[str, int], list[Steady]]
"""Bytes by owner, and how each cut stood."""
Key = tuple[object, ...]


@dataclass(slots=True)
class Met:
    """What is known of one model."""

    signs: dict[Key, int] = field(default_factory=dict)
    """A number for each look of a block in some placing."""
    answers: dict[Key, Answer] = field(default_factory=dict)
    """What a shortened graph took."""
    fused: dict[Key, bool] = field(default_factory=dict)
    """Whether all attention of a shortened graph is fused where its layer lies."""

    def sign(self, look: Key) -> int:
        """The number of a look, the same each time."""
        return self.signs.setdefault(look, len(self.signs))


def met(facts: Facts) -> Met:
    """What is known of a model; little enough to keep."""
    found = _of(facts)
    if len(found.signs) + len(found.answers) + len(found.fused) > MOST_SIGNS:
        found.signs.clear()
        found.answers.clear()
        found.fused.clear()
    return found


def _tensors(facts: Facts, *, typed: bool) -> list[int]:
    parts: list[list[int]] = [[] for _ in range(min(max(facts.layers or 0, 0), MAX_BLOCKS))]
    for group, kind in zip(facts.tensors, _kinds(facts, typed=typed), strict=True):
        for start, stop in group.blocks:
            for part in parts[start:stop]:
                part.append(kind)
    seen: dict[tuple[int, ...], int] = {}
    return [seen.setdefault(tuple(part), len(seen)) for part in parts]


def _kinds(facts: Facts, *, typed: bool) -> list[int]:
    """A number for each group of tensors; equal ones have the same."""
    seen: dict[Key, int] = {}
    asked = ((group.name, group.shape, group.kind if typed else "") for group in facts.tensors)
    return [seen.setdefault(kind, len(seen)) for kind in asked]


_of = ByFacts(lambda _: Met())
by_tensors = ByFacts(lambda facts: _tensors(facts, typed=True))
"""A number for each block by the shapes and types of its tensors."""
by_shapes = ByFacts(lambda facts: _tensors(facts, typed=False))
"""A number for each block by the shapes of its tensors alone."""
