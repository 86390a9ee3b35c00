"""What has a runner held at most, and what does it hold now?"""

from collections.abc import Sequence

from berth.agent.live import Measured
from berth.api.runner import DeviceUse, MemoryUse


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


def _larger(one: int | None, other: int | None) -> int | None:
    known = [figure for figure in (one, other) if figure is not None]
    return max(known) if known else None
