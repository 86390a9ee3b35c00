"""What do all parts of one node's agent share?"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from berth.agent.files import Files
from berth.agent.journal import Journal
from berth.agent.lastbusy import LastBusy
from berth.agent.live import Live
from berth.agent.probe import Probe
from berth.agent.statuses import StatusWriter
from berth.api.meta import timestamp
from berth.kube.refs import Ref
from berth.settings import Settings


@dataclass(frozen=True)
class Timing:
    """Pauses in seconds."""

    probe_s: float = 5.0
    """Between looks at a runner that is up and idle."""
    busy_s: float = 1.0
    """Between looks at one that works or loads: others wait for its end."""
    drain_s: float = 0.25
    admission_s: float = 1.0
    """Between decisions on a load that was refused."""
    admission_ttl_s: float = 60.0
    inventory_s: float = 5.0
    node_s: float = 10.0
    tidy_s: float = 30.0
    """Between looks for what can be deleted."""

    @classmethod
    def of(cls, settings: Settings) -> "Timing":
        probe_s = settings.seconds("PROBE_INTERVAL")
        return cls(
            probe_s=probe_s,
            busy_s=min(cls.busy_s, probe_s),
            drain_s=settings.seconds("DRAIN_PROBE_INTERVAL"),
            admission_ttl_s=settings.seconds("ADMISSION_TTL"),
        )


async def no_versions(host: str, port: int) -> dict[str, str]:
    """Nothing is known."""
    return {}


class Api(Protocol):
    """The part of ``kube.client.Kube`` that the agent uses besides its watches."""

    async def get(self, ref: Ref, name: str, namespace: str = "") -> dict[str, Any]: ...

    async def create(
        self, ref: Ref, body: dict[str, Any], namespace: str = ""
    ) -> dict[str, Any]: ...

    async def apply(
        self,
        ref: Ref,
        name: str,
        body: dict[str, Any],
        *,
        manager: str,
        namespace: str = "",
        subresource: str = "",
    ) -> dict[str, Any]: ...


@dataclass
class Site:
    """One node, as its agent works on it. ``wall`` is only for stamps, ``clock`` for durations."""

    node: str
    kube: Api
    live: Live
    files: Files
    probe: Probe
    writer: StatusWriter
    journal: Journal
    last_busy: LastBusy
    versions: Callable[[str, int], Awaitable[dict[str, str]]] = no_versions
    """Asks the runner program at a host's control port."""
    timing: Timing = Timing()
    wall: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    admit: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when something changed that a load may have waited for."""

    def stamp(self) -> str:
        """Now, as an API time."""
        return timestamp(self.wall())
