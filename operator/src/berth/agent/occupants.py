"""Who is on this node? Runners, their pods, and those that have gone and may still hold memory."""

import asyncio
import logging
from collections.abc import Iterable

from berth.agent.admission import places_of
from berth.agent.ledger import claim_of, node_now
from berth.agent.live import Measured, Sample
from berth.agent.pods import Pod
from berth.agent.returning import Leaver, still_away
from berth.agent.runners import RunnerWork
from berth.agent.site import Site
from berth.api import runner as api
from berth.planner.state import Copy, Policy

log = logging.getLogger(__name__)


class Occupants:
    """Follows the watches. Runners are worked on from `start` on: before it, who is new and who was
    here before cannot be told."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._works: dict[str, RunnerWork] = {}
        self._pods: dict[str, Pod] = {}
        self._copies: dict[str, Copy] = {}
        self._held: dict[str, Measured] = {}
        """By pod uid: what pods without a Runner held."""
        self._leavers: list[Leaver] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._started = False

    def works(self) -> Iterable[RunnerWork]:
        return list(self._works.values())

    def start(self) -> None:
        self._started = True
        for work in self._works.values():
            work.start()
        self._tidy()

    async def close(self) -> None:
        closing = [*(work.close() for work in self._works.values()), *self._closing]
        await asyncio.gather(*closing, return_exceptions=True)

    # -- what the watches tell -------------------------------------------------------------------

    def runner_changed(self, key: str, runner: api.Runner | None) -> None:
        work = self._works.get(key)
        if work is not None and (runner is None or runner.metadata.uid != work.uid):
            self._drop(key, work)
            work = None
        if runner is None:
            return
        if work is not None:
            work.update(runner)
            return
        work = self._works[key] = RunnerWork(self._site, runner)
        work.set_pod(self._pod_of(work.uid))
        if self._started:
            work.start()

    def pod_changed(self, key: str, pod: Pod | None) -> None:
        self._copies.pop(key, None)
        if pod is not None and pod.copy is not None:
            self._copies[key] = pod.copy
            return
        before = self._pods.pop(key, None)
        if pod is not None:
            self._pods[key] = pod
        if before is not None and (pod is None or pod.uid != before.uid):
            self._left(before)
        touched = {entry.runner_uid for entry in (before, pod) if entry is not None}
        for work in self._works.values():
            if work.uid in touched:
                work.set_pod(self._pod_of(work.uid))
        if before is not None and pod is None:
            self._tidy()

    def _pod_of(self, runner_uid: str) -> Pod | None:
        return next((pod for pod in self._pods.values() if pod.runner_uid == runner_uid), None)

    def _drop(self, key: str, work: RunnerWork) -> None:
        del self._works[key]
        if work.pod is not None:
            self._held[work.pod.uid] = work.seen.held
        self._site.writer.forget(work.subject)
        task = asyncio.ensure_future(self._close(work))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        self._site.admit.set()

    async def _close(self, work: RunnerWork) -> None:
        await work.close()
        self._tidy()

    def _left(self, pod: Pod) -> None:
        """Its pod object is gone: what it held should be back, and that is to be seen."""
        work = next((w for w in self._works.values() if w.uid == pod.runner_uid), None)
        held = self._held.pop(pod.uid, None) or (work.seen.held if work else Measured())
        claim = pod.claim or (work.runner.spec.claim if work else api.Claim())
        self._leavers.append(
            Leaver(pod.name, pod.uid, claim_of(claim), held, gone_at=self._site.clock())
        )

    def _tidy(self) -> None:
        """Take links from runners that are gone for good; their pods may have files open before."""
        if not self._started:
            return
        needed = {work.uid for work in self._works.values()}
        needed |= {pod.runner_uid for pod in self._pods.values()}
        for uid in self._site.files.holders():
            if uid not in needed:
                log.info("files of runner %s released", uid)
                self._site.files.release(uid)

    def copies(self) -> tuple[Copy, ...]:
        """Weights that pods hold in memory here."""
        return tuple(self._copies.values())

    def pod_uids(self) -> frozenset[str]:
        """Uids of Berth's pods here."""
        return frozenset(pod.uid for pod in self._pods.values())

    # -- what admission asks -----------------------------------------------------------------------

    async def measure(self) -> list[tuple[Pod, Measured]]:
        """Measure every runner now; gives the pods that have no Runner, with what they hold."""
        await asyncio.gather(*(work.measure_now() for work in self._works.values()))
        known = {work.uid for work in self._works.values()}
        strays = [pod for pod in self._pods.values() if pod.runner_uid not in known]
        figures = await asyncio.gather(*(self._site.live.measure(pod.uid) for pod in strays))
        for pod, held in zip(strays, figures, strict=True):
            if held.host is not None:
                self._held[pod.uid] = held
        return list(zip(strays, figures, strict=True))

    async def away(self, sample: Sample) -> tuple[tuple[str, str], ...]:
        """(place, name) of those that have gone and whose memory is not seen to be back."""
        figures = [
            await asyncio.to_thread(self._site.live.host.pod, leaver.pod_uid)
            for leaver in self._leavers
        ]
        rows = zip(list(self._leavers), figures, strict=True)
        self._leavers = [leaver for leaver, found in rows if still_away(leaver, found, sample)]
        node = node_now(self._site.node, sample, Policy())
        return tuple(
            (place, leaver.name)
            for leaver in self._leavers
            for place in sorted(places_of(leaver.claim, node))
        )
