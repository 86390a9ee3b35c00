"""When was something seen to change? The only way in which others' clocks and beats are read."""

from collections.abc import Hashable
from typing import Any


class Sightings:
    """The moment at which each watched value was last seen to change, on the controller's clock."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, Hashable], tuple[Any, float]] = {}
        self._touched: set[tuple[str, Hashable]] = set()

    def since(self, topic: str, key: Hashable, value: object, now: float) -> float:
        """Since when ``value`` is what it is; ``now`` when it is new or differs from the last time."""
        name = (topic, key)
        self._touched.add(name)
        known = self._seen.get(name)
        if known is None or known[0] != value:
            self._seen[name] = (value, now)
            return now
        return known[1]

    def first(self, topic: str, key: Hashable) -> bool:
        """True when nothing is known of it yet."""
        return (topic, key) not in self._seen

    def put(self, topic: str, key: Hashable, value: object, moment: float) -> None:
        """Remember a moment that is known otherwise (what a former leader stored)."""
        self._seen[(topic, key)] = (value, moment)
        self._touched.add((topic, key))

    def forget_untouched(self) -> None:
        """Drop what nobody asked about since the last call; a pass ends with it."""
        self._seen = {name: seen for name, seen in self._seen.items() if name in self._touched}
        self._touched.clear()
