"""What does this node hold right now, in all and for one pod? Samples shared by whoever asks."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from berth.agent.cgroups import PodFigures
from berth.agent.gpus import Gpu, Gpus, GpuSample
from berth.agent.host import Host, HostMemory
from berth.units import Bytes


@dataclass(frozen=True)
class Sample:
    """Host and devices at one moment; ``at`` in seconds on the monotonic clock."""

    memory: HostMemory
    gpus: GpuSample
    at: float

    @property
    def is_unified(self) -> bool:
        """Some device shares the host's memory."""
        return any(gpu.unified for gpu in self.gpus.gpus)


@dataclass(frozen=True)
class Measured:
    """What one pod holds now. A figure that could not be measured is None or left out.

    ``shared``: what it holds of the host's memory through devices of a unified board, where its
    cgroup does not show it; 0 elsewhere, None where the driver does not tell.
    """

    host: Bytes | None = None
    shared: Bytes | None = Bytes(0)
    devices: Mapping[str, Bytes] = field(default_factory=dict)
    pids: frozenset[int] = frozenset()
    cpu_s: float | None = None


@dataclass
class Live:
    """Takes samples, off the event loop because a driver may block."""

    host: Host
    gpus: Gpus
    clock: Callable[[], float] = time.monotonic
    _last: Sample | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def sample(self, *, max_age_s: float = 0.0) -> Sample:
        """A sample no older than ``max_age_s``."""
        async with self._lock:
            if self._last is None or self.clock() - self._last.at > max_age_s:
                self._last = await asyncio.to_thread(self._take)
            return self._last

    async def measure(self, pod_uid: str) -> Measured:
        """What the pod with this uid holds; nothing is known of one that runs no process (yet)."""
        figures = await asyncio.to_thread(self.host.pod, pod_uid)
        if figures is None or not figures.pids:
            return Measured()
        sample = await self.sample(max_age_s=1.0)
        return measured(figures, sample.gpus.gpus)

    def _take(self) -> Sample:
        return Sample(memory=self.host.memory(), gpus=self.gpus.sample(), at=self.clock())


def measured(figures: PodFigures, gpus: tuple[Gpu, ...]) -> Measured:
    """The pod's own share of host and devices.

    A cgroup shows 0 for a process that is outside of the reader's process namespace: then nobody
    can say which of a device's processes are the pod's.
    """
    pids = figures.pids
    used = {gpu.uuid: None if 0 in pids else _of(gpu, pids) for gpu in gpus}
    unified = [used[gpu.uuid] for gpu in gpus if gpu.unified]
    known = [size for size in unified if size is not None]
    return Measured(
        host=figures.held,
        shared=Bytes(sum(known)) if len(known) == len(unified) else None,
        devices={
            gpu.uuid: size
            for gpu in gpus
            if not gpu.unified and (size := used[gpu.uuid]) is not None
        },
        pids=pids,
        cpu_s=figures.cpu_s,
    )


def _of(gpu: Gpu, pids: frozenset[int]) -> Bytes | None:
    if gpu.processes is None:
        return None
    own = [process.used for process in gpu.processes if process.pid in pids]
    known = [used for used in own if used is not None]
    return Bytes(sum(known)) if len(known) == len(own) else None
