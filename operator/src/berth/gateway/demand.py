"""How does the rest of Berth learn that somebody waits for a model, and when it was last used?

Two facts, never mixed (docs/design/0001): ``waiting`` is this gateway's own entry, written at once,
beaten every 5 s and withdrawn when nobody waits; ``used`` is shared by all gateways and throttled.
A write that fails is tried again; nothing here ever delays a request.
"""

import asyncio
import logging
import time
from typing import Any, Protocol

from berth.api.demand import Demand
from berth.api.meta import timestamp
from berth.kube.client import ApiError, ApiUnreachableError, Kube
from berth.kube.refs import ref_of

log = logging.getLogger(__name__)
BEAT_S = 5.0
LINGER_S = 3.0
"""How long an entry stays for a request that was refused at once: long enough to be planned again."""
FIRST_RETRY_S, LAST_RETRY_S = 0.5, 5.0
LONGEST_INTERVAL_S = 10.0
USED_MANAGER = "berth-gateway-used"


class Absent(Exception):  # noqa: N818 - a state of the world
    """The Demand is not there (yet)."""


class Writer(Protocol):
    """Where entries go."""

    async def write(self, key: str, manager: str, status: dict[str, Any]) -> None:
        """Make ``status`` the manager's whole word on this Demand. Raises Absent, OSError."""


class KubeWriter:
    """Server-side apply on the Demand's status."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._ref = ref_of(Demand)

    async def write(self, key: str, manager: str, status: dict[str, Any]) -> None:
        namespace, _, name = key.partition("/")
        # The API server refuses an empty status; an empty list gives up the entry as well.
        word = status or {"waiting": []}
        try:
            await self._kube.apply_status(
                self._ref, name, word, manager=manager, namespace=namespace
            )
        except ApiError as err:
            if err.not_found:
                raise Absent(key) from err
            raise OSError(str(err)) from err
        except ApiUnreachableError as err:
            raise OSError(str(err)) from err


class Entry:
    """What this gateway says of one model, and what it wants to say."""

    def __init__(self, key: str, interval_s: float) -> None:
        self.key = key
        self.interval_s = interval_s
        self.requests = 0
        self.lingers_until = 0.0
        self.said: dict[str, Any] = {}
        self.wanted: dict[str, Any] = {}
        self.beat = 0
        self.used_at = 0.0
        self.used_written = -1e9
        self.use_is_due = False
        self.is_gone = False
        self.tasks: dict[str, asyncio.Task[None]] = {}


def interval_of(idle_timeout_s: float) -> float:
    """Seconds between two words on a model's use; always several within its idle timeout.

    Which of two models was used least recently is known to within as much.
    """
    if not idle_timeout_s:
        return LONGEST_INTERVAL_S
    return max(0.5, min(LONGEST_INTERVAL_S, idle_timeout_s / 3))


class DemandBook:
    """The entries of all models. Call from the event loop only."""

    def __init__(self, writer: Writer, gateway: str) -> None:
        self._writer = writer
        self._gateway = gateway
        self._manager = f"berth-gateway-{gateway}"[:128]
        self._entries: dict[str, Entry] = {}
        self._loop = asyncio.get_running_loop()

    def entry(self, key: str, idle_timeout_s: float) -> Entry:
        """The entry of a model; ``used`` is written at most once in ``interval_of`` its timeout."""
        interval = interval_of(idle_timeout_s)
        found = self._entries.get(key)
        if found is None:
            found = self._entries[key] = Entry(key, interval)
        is_sooner, found.interval_s = interval < found.interval_s, interval
        if is_sooner and found.use_is_due:
            self._start(found, "used")
        return found

    def forget(self, key: str) -> None:
        """The Model is gone, and its Demand with it."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        entry.is_gone = True
        for task in entry.tasks.values():
            task.cancel()

    # -- waiting -------------------------------------------------------------------------------

    def waiting(self, entry: Entry, requests: int) -> None:
        """So many requests wait for a model that is not up."""
        entry.requests = requests
        self._review(entry)

    def linger(self, entry: Entry) -> None:
        """A request was refused at once: still let the controller look at the model again."""
        entry.lingers_until = self._loop.time() + LINGER_S
        self._loop.call_later(LINGER_S + 0.05, self._review, entry)
        self._review(entry)

    def _review(self, entry: Entry) -> None:
        wants = entry.requests or (1 if self._loop.time() < entry.lingers_until else 0)
        if wants and not entry.wanted:
            entry.wanted = self._word(entry, wants, timestamp(time.time()))
        elif not wants:
            entry.wanted = {}
        if entry.wanted != entry.said:
            self._start(entry, "waiting")

    def _word(self, entry: Entry, requests: int, since: str) -> dict[str, Any]:
        entry.beat += 1
        return {
            "waiting": [
                {
                    "gateway": self._gateway,
                    "requests": requests,
                    "since": since,
                    "beat": entry.beat,
                }
            ]
        }

    def beat(self) -> None:
        """Show that those who wait still do."""
        for entry in self._entries.values():
            if entry.wanted:
                since = entry.wanted["waiting"][0]["since"]
                entry.wanted = self._word(entry, entry.requests or 1, since)
                self._start(entry, "waiting")

    async def beat_for_ever(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            self.beat()

    # -- used ----------------------------------------------------------------------------------

    def used(self, entry: Entry) -> None:
        """A request runs, or has ended, now."""
        entry.used_at = time.time()
        if not entry.use_is_due:
            entry.use_is_due = True
            self._tell_used(entry)

    def _tell_used(self, entry: Entry) -> None:
        delay = entry.used_written + entry.interval_s - self._loop.time()
        if delay <= 0:
            self._start(entry, "used")
        else:
            # The last use before a pause must be told too, so it is written late, not left out.
            self._loop.call_later(delay, self._start, entry, "used")

    # -- writing -------------------------------------------------------------------------------

    def _start(self, entry: Entry, what: str) -> None:
        if entry.is_gone:
            return
        running = entry.tasks.get(what)
        if running is None or running.done():
            work = self._write_waiting(entry) if what == "waiting" else self._write_used(entry)
            entry.tasks[what] = asyncio.ensure_future(work)

    async def _write_waiting(self, entry: Entry) -> None:
        delay = FIRST_RETRY_S
        while entry.wanted != entry.said:
            word = entry.wanted
            try:
                await self._writer.write(entry.key, self._manager, word)
            except Absent:
                if not word:
                    entry.said = {}
                    continue
                delay = await _pause(delay)
            except OSError as err:
                log.warning("demand for %s not written, will be: %s", entry.key, err)
                delay = await _pause(delay)
            else:
                entry.said, delay = word, FIRST_RETRY_S

    async def _write_used(self, entry: Entry) -> None:
        delay = FIRST_RETRY_S
        while entry.use_is_due:
            # What counts is the use as it is known now, also after a pause for a failure.
            stamp = timestamp(entry.used_at)
            entry.use_is_due = False
            try:
                await self._writer.write(entry.key, USED_MANAGER, {"used": stamp})
            except (Absent, OSError) as err:
                entry.use_is_due = True
                log.warning("use of %s not written, will be: %s", entry.key, err or "no Demand yet")
                delay = await _pause(delay)
            else:
                entry.used_written = self._loop.time()
                if entry.use_is_due:
                    # An answer ended while its beginning was written.
                    self._tell_used(entry)
                return

    async def withdraw(self, timeout_s: float = 2.0) -> None:
        """This gateway ends: nobody waits here any more. Best effort."""
        for entry in self._entries.values():
            entry.requests, entry.lingers_until = 0, 0.0
            self._review(entry)
        tasks = [task for entry in self._entries.values() for task in entry.tasks.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late:
                task.cancel()


async def _pause(delay: float) -> float:
    await asyncio.sleep(delay)
    return min(delay * 2, LAST_RETRY_S)
