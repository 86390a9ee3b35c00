"""Which facts say the same?

A planner asks for the same model again and again, each time with facts that were read anew from a status. What
is worked out once for facts is kept by what they say, not by which object says it.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from berth.facts import Facts

MOST = 512
"""Models that are remembered; then all are forgotten."""

Key = tuple[object, ...]
_BY_SAYING: dict[Key, Facts] = {}
_BY_OBJECT: dict[int, tuple[Facts, Facts]] = {}
"""Facts met before (held, so that no other object gets their number) and the first that said the same."""


def first_of(facts: Facts) -> Facts:
    """The first object met that says the same, as far as memory goes: names and sizes of files do not count."""
    held = _BY_OBJECT.get(id(facts))
    if held is not None:
        return held[1]
    if len(_BY_OBJECT) >= MOST:
        _BY_OBJECT.clear()
        _BY_SAYING.clear()
    first = _BY_SAYING.setdefault(_key(facts), facts)
    _BY_OBJECT[id(facts)] = (facts, first)
    return first


def _key(facts: Facts) -> Key:
    # A flag and a number are equal in Python, and are not the same in a header.
    said = tuple((key, type(value), value) for key, value in facts.hparams.items())
    return (facts.architecture, facts.kind, facts.vocabulary, said, facts.tensors)


Found = TypeVar("Found")


class ByFacts(Generic[Found]):
    """What is worked out once per object of facts, which do not change."""

    def __init__(self, work_out: Callable[[Facts], Found]) -> None:
        self._work_out = work_out
        self._held: dict[int, tuple[Facts, Found]] = {}

    def __call__(self, facts: Facts) -> Found:
        """What there is of these facts."""
        held = self._held.get(id(facts))
        if held is not None and held[0] is facts:
            return held[1]
        found = self._work_out(facts)
        if len(self._held) >= MOST:
            self.cache_clear()
        self._held[id(facts)] = (facts, found)
        return found

    def cache_clear(self) -> None:
        """Forget all."""
        self._held.clear()
