"""Is a board with unified memory about to run out? Then the load under way is ended (O1).

On such a board the kernel does not survive what a GPU driver takes, so somebody must act before
it: locally, and even while the API server is away. Loaded runners stay, unless the policy says
``EvictIdle``: then the one that has been idle for longest goes when nothing loads.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Orders:
    """What the policy says now. ``pinned``: uids of Models that are never ended for being idle."""

    threshold: Bytes
    evicts_idle: bool = False
    pinned: frozenset[str] = frozenset()


def victim(
    works: Iterable[RunnerWork], orders: Orders, last_busy: Mapping[str, float]
) -> RunnerWork | None:
    """Whom to end, if anybody.

    1. The load under way; of several the one that holds most.
    2. With ``EvictIdle``: of those that are up with nothing in hand, the one whose last work is
       longest ago (``last_busy``: by uid, wall clock; one that never worked comes first).
    """
    with_pod = [work for work in works if work.pod is not None]
    loading = [work for work in with_pod if work.stage is Stage.STARTING]
    if loading:
        return max(loading, key=lambda work: work.seen.held.host or 0)
    if not orders.evicts_idle:
        return None
    idle = [
        work
        for work in with_pod
        if work.stage is Stage.UP
        and work.seen.pulse.busy == 0
        and work.runner.spec.model_ref.uid not in orders.pinned
    ]
    return min(idle, key=lambda work: (last_busy.get(work.uid, 0.0), work.uid), default=None)


@dataclass
class Guard:
    """Watches one node. ``orders`` is asked each time: a policy may change."""

    site: Site
    works: Callable[[], Iterable[RunnerWork]]
    orders: Callable[[], Orders]
    killed: Callable[[RunnerWork, str], Awaitable[None]]
    """Told after a kill; may take its time."""

    async def run(self) -> None:
        while True:
            sample = await self.site.live.sample(max_age_s=IDLE_S)
            if not sample.is_unified:
                await asyncio.sleep(IDLE_S)
                continue
            # The driver is not asked each time, and the look itself takes no memory to speak of.
            available, orders = self.site.live.host.available(), self.orders()
            acted = available < orders.threshold and await self._act(Bytes(available), orders)
            await asyncio.sleep(AFTER_KILL_S if acted else LOOK_S)

    async def _act(self, available: Bytes, orders: Orders) -> bool:
        work = victim(self.works(), orders, self.site.last_busy.moments)
        if work is None or work.pod is None:
            return False
        what = "the load of" if work.stage is Stage.STARTING else "idle"
        message = (
            f"{show_bytes(available)} of host memory are left on {self.site.node}, less than "
            f"{show_bytes(orders.threshold)}: {what} {work.runner.key} is ended"
        )
        # The journal comes first: if the node goes down all the same, it says why.
        self.site.journal.note("guard", runner=work.runner.key, uid=work.uid, available=available)
        hit = await asyncio.to_thread(self.site.live.host.kill_pod, work.pod.uid)
        log.error("%s (%d processes)", message, hit)
        await self.killed(work, message)
        return hit > 0
