"""What has a runner held at most, what does it hold now, and does it compute?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from berth.agent.live import Measured
from berth.api.runner import DeviceUse, MemoryUse
from berth.units import Bytes

COMPUTES = 0.5
"""Share of one CPU: an engine that waits takes next to none, one that reads a prompt one or more."""


@dataclass(frozen=True)
class CpuUse:
    """Processor time at one moment, and whether it was used since the moment before."""

    cpu_s: float | None = None
    at: float = 0.0
    is_busy: bool = False

    def next(self, cpu_s: float | None, *, at: float) -> "CpuUse":
        if cpu_s is None or self.cpu_s is None or at <= self.at:
            return CpuUse(cpu_s, at)
        return CpuUse(cpu_s, at, (cpu_s - self.cpu_s) / (at - self.at) >= COMPUTES)


def next_memory(before: MemoryUse | None, held: Measured, claimed: Sequence[str]) -> MemoryUse:
    """The figures after one more measurement; what cannot be measured now keeps its peak.

    Devices are those that it claims or is seen on; one that tells nothing is left out.
    """
    old = before or MemoryUse()
    peaks = {use.device: use.peak for use in old.devices}
    uses = {use.device: use.used for use in old.devices} | dict(held.devices)
    wanted = [uuid for uuid in uses if uuid in claimed or uses[uuid] > 0 or uuid in peaks]
    return MemoryUse(
        host=held.host if held.host is not None else old.host,
        host_peak=_larger(old.host_peak, held.host),
        devices=[
            DeviceUse(device=uuid, used=uses[uuid], peak=max(peaks.get(uuid, 0), uses[uuid]))
            for uuid in sorted(wanted)
        ],
    )


def with_lost(held: Measured, lost: int | None) -> Measured:
    """On a board with unified memory: the host's share is what MemAvailable lost by the load (M12).

    What its cgroup and the driver show may be more by now, never less; where neither the loss nor
    the driver's word is known, nobody knows what it holds.
    """
    if held.host is None or held.shared == 0:
        return held
    shown = None if held.shared is None else held.host + held.shared
    host = _larger(shown, lost)
    return replace(held, host=None if host is None else Bytes(host))


def _larger(one: int | None, other: int | None) -> int | None:
    known = [figure for figure in (one, other) if figure is not None]
    return max(known) if known else None
