"""Which Events does the controller write? One for each thing that really happened."""

import logging
import time
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from berth.api.meta import Resource, timestamp
from berth.controller.outbox import Outbox
from berth.kube.client import Kube
from berth.kube.events import emit

log = logging.getLogger("berth.controller.journal")


class Happening(StrEnum):
    """The reasons of the controller's Events."""

    PLACED = "Placed"
    LOADED = "Loaded"
    DRAINING = "Draining"
    SPARED = "Spared"
    EVICTED = "Evicted"
    UNLOADED = "Unloaded"
    REFUSED = "Refused"
    CRASHED = "Crashed"
    FETCH_FAILED = "FetchFailed"
    FAILED = "Failed"
    RELOADED = "ReloadedFromDisk"
    SWITCHING = "Switching"
    SWITCHED = "Switched"
    ROLLED_BACK = "RolledBack"


_WARNINGS = frozenset(
    {
        Happening.REFUSED,
        Happening.CRASHED,
        Happening.FETCH_FAILED,
        Happening.FAILED,
        Happening.RELOADED,
        Happening.ROLLED_BACK,
    }
)


@dataclass(frozen=True)
class _Event:
    """One thing that happened, and when."""

    subject: Resource
    what: Happening
    message: str
    at: str


_MOST = 4096
"""Events that wait; beyond that the newest are only logged."""


class Teller:
    """Writes Events and the log line beside each: those of one object in the order they are told."""

    def __init__(self, kube: Kube, outbox: Outbox) -> None:
        self._kube = kube
        self._outbox = outbox
        self._waiting: dict[str, deque[_Event]] = {}
        self._count = 0

    def tell(self, subject: Resource, what: Happening, message: str) -> None:
        """One Event about ``subject``; a failure to write it changes nothing."""
        log.info("%s %s: %s: %s", subject.kind, subject.key, what, message)
        if self._count >= _MOST:
            return
        self._count += 1
        events = self._waiting.setdefault(subject.metadata.uid, deque())
        events.append(_Event(subject, what, message, timestamp(time.time())))
        if len(events) == 1:
            self._post(events[0])

    def _post(self, event: _Event) -> None:
        self._outbox.post(("Event", event.subject.key), event, partial(self._write, event))

    async def _write(self, event: _Event) -> None:
        subject, meta = event.subject, event.subject.metadata
        about = {
            "apiVersion": subject.api_version,
            "kind": subject.kind,
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
        }
        await emit(
            self._kube,
            about,
            program="controller",
            reason=event.what,
            message=event.message,
            at=event.at,
            warning=event.what in _WARNINGS,
        )
        self._written(meta.uid)

    def _written(self, uid: str) -> None:
        self._count -= 1
        events = self._waiting[uid]
        events.popleft()
        if events:
            self._post(events[0])
        else:
            del self._waiting[uid]
