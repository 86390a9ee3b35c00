"""How much may the holder of a key ask of this gateway? Requests a minute, and at once.

Counted for each gateway by itself: with three of them a key has up to three times as much.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil

from berth.gateway.errors import Refused
from berth.gateway.keys import Caller


@dataclass(slots=True)
class _Meter:
    """What one caller has left."""

    tokens: float
    at: float
    running: int = 0


class Meters:
    """The meters of all callers that have a limit, by name: they outlive a new keys file."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._meters: dict[str, _Meter] = {}

    @contextmanager
    def admitted(self, caller: Caller) -> Iterator[None]:
        """For the time of one request, its wait included. Raises Refused ``key_limit``."""
        if caller.is_unlimited:
            yield
            return
        meter = self._meter(caller)
        if caller.concurrent is not None and meter.running >= caller.concurrent:
            raise _limited(f"{caller.concurrent} at once", 1)
        if caller.per_minute is not None:
            _take(meter, caller.per_minute, self._clock())
        meter.running += 1
        try:
            yield
        finally:
            meter.running -= 1

    def _meter(self, caller: Caller) -> _Meter:
        fresh = _Meter(float(caller.per_minute or 0), self._clock())
        return self._meters.setdefault(caller.name, fresh)


def _take(meter: _Meter, per_minute: int, now: float) -> None:
    """One token of a bucket that holds a minute's worth and fills evenly."""
    meter.tokens = min(per_minute, meter.tokens + (now - meter.at) * per_minute / 60)
    meter.at = now
    if meter.tokens < 1:
        raise _limited(f"{per_minute} a minute", ceil((1 - meter.tokens) * 60 / per_minute))
    meter.tokens -= 1


def _limited(limit: str, seconds: int) -> Refused:
    return Refused("key_limit", f"your key may make {limit} requests", retry_after=seconds)
