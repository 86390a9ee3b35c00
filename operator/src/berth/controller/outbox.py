"""Which writes may wait? Those that no placement waits for go out beside the passes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice

from berth.kube.client import ApiError, ApiUnreachableError
from berth.planner.actions import Refuse

log = logging.getLogger(__name__)

_AT_ONCE = 8
_PAUSE_S = 1.0
"""After a write that failed, before the same object may be written again."""


@dataclass
class Written:
    """What went out, for metrics and tests."""

    statuses: int = 0
    refusals: list[Refuse] = field(default_factory=list)
    """Those that are new."""


Job = Callable[[], Awaitable[None]]


class Rank(IntEnum):
    """Whose writes go first."""

    ROUTES = 0
    """Gateways send by them."""
    WORDS = 1
    """People read them."""


@dataclass(frozen=True)
class _Letter:
    said: object
    job: Job
    rank: Rank


class Outbox:
    """One write at a time of each object, and of those that wait the newest alone.

    A write that the API server does not take is not tried again here: ``changed`` is called after
    a pause, and the next pass says what it then finds missing.
    """

    def __init__(
        self, changed: Callable[[], None] = lambda: None, *, pause_s: float = _PAUSE_S
    ) -> None:
        self._changed = changed
        self._pause_s = pause_s
        self._waiting: dict[Rank, dict[Hashable, _Letter]] = {rank: {} for rank in Rank}
        self._sending: dict[Hashable, tuple[_Letter, asyncio.Task[None]]] = {}
        self._held = False
        self.written = Written()

    def post(self, key: Hashable, said: object, job: Job, *, rank: Rank = Rank.WORDS) -> None:
        """Have ``job`` write what is ``said`` of an object, unless that is being written already."""
        sending = self._sending.get(key)
        if sending is not None and sending[0].said == said:
            self.drop(key)
            return
        self._waiting[rank][key] = _Letter(said, job, rank)
        self._send()

    def drop(self, key: Hashable) -> None:
        """What waits to be written of this object is not true any more."""
        for letters in self._waiting.values():
            letters.pop(key, None)

    @contextmanager
    def held(self) -> Iterator[None]:
        """While placements are being written only the urgent goes out."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self._send()

    def __contains__(self, key: Hashable) -> bool:
        """Whether something of this object waits or is being written."""
        return key in self._sending or any(key in letters for letters in self._waiting.values())

    def taken(self) -> Written:
        """What went out since this was last asked."""
        written, self.written = self.written, Written()
        return written

    async def settled(self) -> None:
        """Until nothing is left to write."""
        while self._sending:
            await asyncio.wait([task for _, task in self._sending.values()])

    def _send(self) -> None:
        """As many as may go out at once: the urgent first, then in the order of their posting."""
        for rank, letters in self._waiting.items():
            for key in self._free(letters) if rank is Rank.ROUTES or not self._held else ():
                letter = letters.pop(key)
                task = asyncio.get_running_loop().create_task(self._write(key, letter))
                self._sending[key] = letter, task

    def _free(self, letters: dict[Hashable, _Letter]) -> list[Hashable]:
        """The first few objects of which nothing is under way."""
        free = (key for key in letters if key not in self._sending)
        return list(islice(free, max(0, _AT_ONCE - len(self._sending))))

    async def _write(self, key: Hashable, letter: _Letter) -> None:
        try:
            await letter.job()
        except (ApiError, ApiUnreachableError) as err:
            log.warning("%s was not written: %s", key, err)
            await asyncio.sleep(self._pause_s)
            self._changed()
        except asyncio.CancelledError:
            # The program ends: nothing more goes out.
            self._waiting = {rank: {} for rank in Rank}
            raise
        except Exception:
            log.exception("writing %s failed", key)
        finally:
            self._sending.pop(key, None)
            self._send()
