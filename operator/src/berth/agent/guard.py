"""Is a board with unified memory about to run out? Then the load under way is ended (O1).

On such a board the kernel does not survive what a GPU driver takes, so somebody must act before
it: locally, and even while the API server is away. Loaded runners stay.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from berth.agent.live import Sample
from berth.agent.runners import RunnerWork
from berth.agent.site import Site
from berth.planner.state import Stage
from berth.units import Bytes, show_bytes

log = logging.getLogger(__name__)
LOOK_S = 0.25
IDLE_S = 30.0
"""Between looks for a unified device on a node that has none."""
AFTER_KILL_S = 5.0
"""Memory comes back a moment after its owner's end: one kill must be able to show its effect."""


def must_act(sample: Sample, threshold: Bytes) -> bool:
    """Less is available than the policy's guard allows, on a board where that matters."""
    return sample.is_unified and sample.memory.available < threshold


def victim(works: Iterable[RunnerWork]) -> RunnerWork | None:
    """The load under way; of several the one that holds most."""
    loading = [work for work in works if work.pod is not None and work.stage is Stage.STARTING]
    return max(loading, key=lambda work: work.seen.held.host or 0, default=None)


@dataclass
class Guard:
    """Watches one node. ``threshold`` is asked each time: a policy may change."""

    site: Site
    works: Callable[[], Iterable[RunnerWork]]
    threshold: Callable[[], Bytes]
    killed: Callable[[RunnerWork, str], Awaitable[None]]
    """Told after a kill; may take its time."""

    async def run(self) -> None:
        while True:
            sample = await self.site.live.sample(max_age_s=LOOK_S / 2)
            if not sample.is_unified:
                await asyncio.sleep(IDLE_S)
                continue
            acted = must_act(sample, self.threshold()) and await self._act(sample)
            await asyncio.sleep(AFTER_KILL_S if acted else LOOK_S)

    async def _act(self, sample: Sample) -> bool:
        work = victim(self.works())
        if work is None or work.pod is None:
            return False
        available, threshold = sample.memory.available, self.threshold()
        message = (
            f"{show_bytes(available)} of host memory are left on {self.site.node}, less than "
            f"{show_bytes(threshold)}: the load of {work.runner.key} is ended"
        )
        # The journal comes first: if the node goes down all the same, it says why.
        self.site.journal.note("guard", runner=work.runner.key, uid=work.uid, available=available)
        hit = await asyncio.to_thread(self.site.live.host.kill_pod, work.pod.uid)
        log.error("%s (%d processes)", message, hit)
        await self.killed(work, message)
        return hit > 0
