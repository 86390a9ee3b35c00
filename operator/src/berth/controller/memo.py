"""Must this be worked out again? Not while what it was made from is the same."""

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class Memo(Generic[V]):
    """The last value of each key, beside what it was made from.

    Sources are tuples: one of the very same objects is known without looking into them.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[tuple[Any, ...], V]] = {}
        self._asked: dict[Hashable, tuple[tuple[Any, ...], V]] = {}

    def get(self, key: Hashable, source: tuple[Any, ...], make: Callable[[], V]) -> V:
        """The value of ``key``; ``make`` is called when it was never made from such a source."""
        known = self._known.get(key)
        value = known[1] if known is not None and known[0] == source else make()
        # The newer of two equal sources is kept: the next one is likely to be the same object.
        self._known[key] = self._asked[key] = (source, value)
        return value

    def forget_untouched(self) -> None:
        """Drop what nobody asked for since the last call; a pass ends with it."""
        self._known, self._asked = self._asked, {}
