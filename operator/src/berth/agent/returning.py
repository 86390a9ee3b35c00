"""Is the memory of a runner that has gone seen to be back? The next load there waits for it (M8)."""

from dataclasses import dataclass, field

from berth.agent.cgroups import PodFigures
from berth.agent.live import Measured, Sample
from berth.planner.state import Claim

WAIT_S = 60.0
"""After this long the live figures alone decide: what is still held then counts as foreign."""


@dataclass(frozen=True)
class Leaver:
    """A runner whose pod has gone, and what it held last."""

    name: str
    pod_uid: str
    claim: Claim
    held: Measured = field(default_factory=Measured)
    gone_at: float = 0.0


def is_back(leaver: Leaver, figures: PodFigures | None, sample: Sample) -> bool:
    """Whether nothing of it is left: no cgroup with processes, and none of them on a device.

    Devices are asked too because a driver frees them a little after the process has ended. Of a
    device that does not tell its processes nothing can be seen, and the live figures decide.
    """
    if figures is not None and figures.pids:
        return False
    pids = leaver.held.pids - {0}
    return not any(
        process.pid in pids for gpu in sample.gpus.gpus for process in gpu.processes or ()
    )


def still_away(leaver: Leaver, figures: PodFigures | None, sample: Sample) -> bool:
    """Whether the next load on its places must wait for it."""
    return sample.at - leaver.gone_at < WAIT_S and not is_back(leaver, figures, sample)
