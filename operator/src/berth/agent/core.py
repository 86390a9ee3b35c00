"""What is one node's agent made of? It can be composed with fakes, many in one process."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from berth.agent.admission import Ground
from berth.agent.claims import claims_in_use
from berth.agent.engines import find_engines
from berth.agent.files import Files
from berth.agent.gpus import Gpus
from berth.agent.guard import Guard, Orders
from berth.agent.host import Host
from berth.agent.journal import Journal
from berth.agent.lastbusy import LastBusy
from berth.agent.ledger import ledger, node_now
from berth.agent.live import Live, Sample
from berth.agent.loads import Loads
from berth.agent.metrics import Metrics
from berth.agent.node import NodeRecord
from berth.agent.occupants import Occupants
from berth.agent.paths import Paths
from berth.agent.pods import Pod
from berth.agent.probe import HttpProbe, Probe
from berth.agent.runners import RunnerWork
from berth.agent.site import Site, Timing, no_versions
from berth.agent.statuses import StatusWriter
from berth.agent.views import Views
from berth.api.meta import bytes_of, timestamp
from berth.api.residency import Residency, ResidencySpec
from berth.api.runner import Runner
from berth.kube.client import Kube
from berth.kube.events import emit
from berth.planner.state import Policy
from berth.policy import governing, policy_of
from berth.reasons import Reason
from berth.settings import Settings
from berth.units import Bytes

log = logging.getLogger(__name__)


class Agent:
    """The agent of one node. Give it a Kube and what the node is; then `run`."""

    def __init__(
        self,
        *,
        node: str,
        kube: Kube,
        host: Host,
        gpus: Gpus,
        files: Files,
        settings: Settings,
        probe: Probe | None = None,
        views: Views | None = None,
        timing: Timing | None = None,
        paths: Paths | None = None,
        journal: Path | None = None,
    ) -> None:
        """``views``: shared with the other agents of this process, and run by whoever made them."""
        self.node = node
        self._kube = kube
        self._settings = settings
        self._own_views = views is None
        self.views = views or Views(kube, [node])
        self._own_probe = HttpProbe() if probe is None else None
        folder = journal or Path(settings.text("STORE_ROOT")) / "journal"
        self.site = Site(
            node=node,
            kube=kube,
            live=Live(host, gpus),
            files=files,
            probe=probe or self._own_probe or HttpProbe(),
            versions=self._own_probe.versions if self._own_probe else no_versions,
            writer=StatusWriter(kube),
            journal=Journal(folder, lambda: self.site.stamp()),
            last_busy=LastBusy(folder / "last-busy.json"),
            timing=timing or Timing.of(settings),
        )
        self.claims_used = Bytes(0)
        self.metrics = Metrics()
        self.occupants = Occupants(self.site)
        self.record = NodeRecord(self.site, paths or Paths(settings.text("HOST_ROOT")))
        self._loads = Loads(self.site, self.works, self._survey, self.metrics)

    # -- life ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """For ever; cancel it to stop. What it has told stays told, and is taken up again.

        Any part that ends in a bug ends the whole: a node whose agent is half alive looks well.
        """
        self.views.add(self)
        try:
            async with asyncio.TaskGroup() as group:
                for cache in self.views.caches if self._own_views else ():
                    group.create_task(cache.run(), name="watch")
                group.create_task(self._work(group), name="agent")
        finally:
            self.views.remove(self)
            await self.record.close()
            await self.occupants.close()
            await self.site.writer.close()
            if self._own_probe is not None:
                await self._own_probe.close()

    async def _work(self, group: asyncio.TaskGroup) -> None:
        """Begin when everything was listed once: before, what is gone looks as if it never was."""
        await asyncio.gather(*(cache.synced.wait() for cache in self.views.caches))
        await self.record.open()
        self.occupants.start()
        log.info("agent of %s: %d runners here", self.node, len(list(self.works())))
        guard = Guard(self.site, self.works, self._guard_orders, self._guard_killed)
        group.create_task(self._loads.run(), name="loads")
        group.create_task(guard.run(), name="guard")
        group.create_task(self._tidy(), name="tidy")
        group.create_task(self._keep_record(), name="inventory")
        group.create_task(self.record.follow_node(self.policy_changed), name="node")

    def not_ready(self) -> str:
        """What is missing before it is of use; empty: nothing."""
        if not self.views.is_synced():
            return "watches are not synced"
        return "" if self.record.is_open else "the NodeInventory was not read yet"

    # -- what it is told -------------------------------------------------------------------------

    def runner_changed(self, key: str, runner: Runner | None) -> None:
        self.occupants.runner_changed(key, runner)

    def pod_changed(self, key: str, pod: Pod | None) -> None:
        self.occupants.pod_changed(key, pod)
        self.record.hurry()

    def policy_changed(self) -> None:
        self.site.admit.set()
        self.record.look()

    # -- what it knows ---------------------------------------------------------------------------

    def works(self) -> Iterable[RunnerWork]:
        return self.occupants.works()

    @property
    def epoch(self) -> int:
        """The highest epoch of a controller seen, in this life or in one before."""
        return max(self.views.epoch, self.record.epoch)

    def residency(self) -> Residency | None:
        """The one that governs this node."""
        return governing(self.views.residencies.values(), self.record.info.labels)

    def policy(self) -> Policy:
        reserve = self._settings.bytes("HOST_RESERVE")
        said = policy_of(self.residency(), host_reserve=reserve)
        return replace(said, claims_used=self.claims_used)

    async def _look_at_claims(self) -> None:
        """What the programs that memory is set aside for use of it now: it is not counted twice."""
        residency = self.residency()
        claims = residency.spec.claims if residency else []
        pods = self.views.others_on(self.node)
        host = self.site.live.host
        self.claims_used = await asyncio.to_thread(claims_in_use, claims, host, pods)

    async def _survey(self) -> Callable[[], Ground]:
        """A look at everything that a load depends on. What it gives is called for each decision
        on it, for each adds to the ledger what the one before has let in."""
        strays = await self.occupants.measure()
        await self._look_at_claims()
        sample = await self.site.live.sample()
        away = await self.occupants.away(sample)
        node = node_now(self.node, sample, self.policy(), self.occupants.copies())
        names = await self._strangers(sample)
        self._show(sample)
        return lambda: Ground(
            node=node,
            runners=ledger(self.works(), strays),
            now=self.site.wall(),
            epoch=self.epoch,
            away=away,
            strangers=names,
        )

    async def _strangers(self, sample: Sample) -> tuple[str, ...]:
        """Asked only where they are in the way of a load: it looks at every process."""
        if not sample.is_unified:
            return ()
        residency = self.residency()
        claims = [claim.name for claim in residency.spec.claims] if residency else []
        found = await asyncio.to_thread(find_engines, self.site.live.host, sample.gpus)
        own = self.occupants.pod_uids()
        return tuple(e.words for e in found if e.pod_uid not in own and not e.is_claimed(claims))

    async def _keep_record(self) -> None:
        while True:
            residency = self.residency()
            allowed = residency.spec.host_paths if residency else []
            models = list(self.views.host_path_models())
            await self._look_at_claims()
            self.record.claims_used = self.claims_used
            if await self.record.keep(self.epoch, models, allowed):
                # Used memory and what runners hold of it are read together by the planner.
                await self.occupants.measure()
                for work in self.works():
                    work.publish_memory()
            self._show(await self.site.live.sample(max_age_s=self.site.timing.inventory_s))
            await self.record.wait()

    async def _tidy(self) -> None:
        """Now and then: what nobody can use any more goes from the disk."""
        while True:
            models, now = self.views.model_uids(), self.site.wall()
            await asyncio.to_thread(self.site.files.sweep_sessions, models, now)
            self.site.last_busy.keep_only([work.uid for work in self.works()])
            await self.site.files.trim()
            await asyncio.sleep(self.site.timing.tidy_s)

    def _show(self, sample: Sample) -> None:
        self.metrics.show(sample, self.works())

    # -- guard -----------------------------------------------------------------------------------

    def _guard_orders(self) -> Orders:
        spec = (residency.spec if (residency := self.residency()) else None) or ResidencySpec()
        evicts_idle = spec.guard == "EvictIdle"
        return Orders(
            threshold=bytes_of(spec.host.guard),
            evicts_idle=evicts_idle,
            pinned=self.views.pinned_uids() if evicts_idle else frozenset(),
        )

    async def _guard_killed(self, work: RunnerWork, message: str) -> None:
        self.metrics.guard_kills.inc()
        self.record.guard_kills += 1
        subject: dict[str, Any] = work.runner.wire()
        await emit(
            self._kube,
            subject,
            program="agent",
            reason=Reason.NO_MEMORY,
            message=message,
            at=timestamp(self.site.wall()),
            warning=True,
        )
