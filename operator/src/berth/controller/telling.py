"""Which Events does the controller write? One for each thing that really happened."""

import logging
import time
from enum import StrEnum

from berth.api.meta import Resource, timestamp
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


class Teller:
    """Writes Events and the log line beside each."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def tell(self, subject: Resource, what: Happening, message: str) -> None:
        """One Event about ``subject``; a failure to write it changes nothing."""
        log.info("%s %s: %s: %s", subject.kind, subject.key, what, message)
        about = {
            "apiVersion": subject.api_version,
            "kind": subject.kind,
            "metadata": {
                "name": subject.metadata.name,
                "namespace": subject.metadata.namespace,
                "uid": subject.metadata.uid,
            },
        }
        await emit(
            self._kube,
            about,
            program="controller",
            reason=what,
            message=message,
            at=timestamp(time.time()),
            warning=what in _WARNINGS,
        )
