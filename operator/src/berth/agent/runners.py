"""What does the agent do for one Runner? Files first, then looks at its engine, until it is gone."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from berth.agent.fetch_errors import FetchError
from berth.agent.files import file_refs, needs_fetch, read_token
from berth.agent.health import Look, next_pulse
from berth.agent.loans import Loan
from berth.agent.memory import CpuUse, next_memory, with_lost
from berth.agent.pods import Pod
from berth.agent.probe import target_of
from berth.agent.quiet import next_rest
from berth.agent.seen import Seen, health_of, quiet_of, seen_before
from berth.agent.site import Site
from berth.agent.statuses import Subject, is_worth_writing, memory_has_moved
from berth.api.meta import moment_of
from berth.api.runner import (
    Admission,
    AgentStatus,
    DrainOrder,
    FetchStatus,
    Runner,
)
from berth.kube.client import ApiError, ApiUnreachableError
from berth.kube.refs import ref_of
from berth.manifests.pod import control_port
from berth.manifests.sessions import session_folder
from berth.planner.state import Stage
from berth.reasons import Reason

log = logging.getLogger(__name__)
_RUNNERS = ref_of(Runner)
_AGAIN_S = 10
_VERSION_LOOKS = 24
"""How often a runner is asked for its versions before it is left alone: they take seconds to find out."""


class RunnerWork:
    """One Runner on this node. All of its state is rebuilt from the Runner after a restart."""

    def __init__(self, site: Site, runner: Runner) -> None:
        self._site = site
        self.runner = runner
        self.pod: Pod | None = None
        found = runner.status.agent or AgentStatus()
        self.fetch = found.fetch
        self.admission = found.admission
        self.seen = seen_before(found, now=site.clock())
        self.is_fetched = False
        self.versions = found.versions
        self._version_looks = 0
        self.available_before: int | None = None
        """MemAvailable when it was admitted; what it lost by the load is seen when it is up."""
        self._lost = found.memory.host if found.memory else None
        self._written: AgentStatus | None = runner.status.agent
        self._written_at = float("-inf")
        self._measured_at = float("-inf")
        self._cpu = CpuUse()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.subject = Subject(
            _RUNNERS, runner.metadata.name, runner.metadata.namespace, runner.metadata.uid
        )

    # -- life ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin. The pod is known by now if there is one: without it nothing told of it holds."""
        if self.pod is None:
            self.seen = Seen()
        self._tasks = [
            asyncio.create_task(self._kept(self._prepare), name=f"prepare {self.runner.key}"),
            asyncio.create_task(self._kept(self._watch), name=f"watch {self.runner.key}"),
        ]

    async def _kept(self, part: Callable[[], Awaitable[None]]) -> None:
        """A bug over one Runner must not end the work on the others: it is told, and tried again."""
        while True:
            try:
                await part()
                return
            except Exception:
                log.exception("runner %s: a bug; tried again in %d s", self.runner.key, _AGAIN_S)
                await asyncio.sleep(_AGAIN_S)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def update(self, runner: Runner) -> None:
        """The Runner changed: a drain, a new pass, or only our own write coming back."""
        before, self.runner = self.runner, runner
        if _orders(before) != _orders(runner):
            self._wake.set()
            self._site.admit.set()

    def set_pod(self, pod: Pod | None) -> None:
        """Its pod appeared, changed or went."""
        before, self.pod = self.pod, pod
        if pod is not None and before is not None and before.uid != pod.uid:
            self.seen, self._lost = Seen(), None
            self.versions, self._version_looks = {}, 0
        self._wake.set()
        self._site.admit.set()

    # -- what others ask -----------------------------------------------------------------------

    @property
    def uid(self) -> str:
        return self.runner.metadata.uid

    @property
    def is_leaving(self) -> bool:
        return self.runner.metadata.deletion_timestamp is not None

    @property
    def admitted_until(self) -> float | None:
        """Wall clock of this node; None when it is not admitted for its present pass."""
        admission = self.admission
        if admission is None or admission.state != "Admitted":
            return None
        if admission.pass_id != self.runner.spec.pass_id:
            return None
        return moment_of(admission.expires_at)

    @property
    def is_up(self) -> bool:
        return self.seen.pulse.was_ready or bool(self.runner.status.up_since)

    @property
    def wants_admission(self) -> bool:
        """Reserved, with its files, without a pod, and not called off."""
        spec = self.runner.spec
        has_pod = self.pod is not None or self.runner.status.pod is not None
        called_off = self.is_leaving or spec.drain is not None
        return spec.stage == "Reserved" and self.is_fetched and not has_pod and not called_off

    @property
    def stage(self) -> Stage:
        """As the planner's ledger sees it."""
        if self.pod is not None:
            if self.pod.ended:
                return Stage.FAILED
            if self.pod.deleting or self.is_leaving:
                return Stage.STOPPING
            return Stage.UP if self.is_up else Stage.STARTING
        return Stage.RESERVED if self.runner.spec.stage == "Reserved" else Stage.PREPARING

    def decide(self, admission: Admission) -> None:
        """Take over what was decided about its load, and tell."""
        self.admission = admission
        self.publish()

    # -- files ---------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        """Have its files. What was verified before a restart stays told while it is looked at again."""
        if needs_fetch(self.runner):
            try:
                await self._provide()
            except FetchError as err:
                reason = err.reason
                log.warning("runner %s: files not had: %s: %s", self.runner.key, reason, err)
                self._fetch_failed(reason, str(err))
                return
        self._lend()
        size = sum(file.size for file in self.runner.spec.files) if needs_fetch(self.runner) else 0
        self.fetch = FetchStatus(state="Verified", done=size, total=size)
        self.is_fetched = True
        self.publish()
        self._site.admit.set()

    def _lend(self) -> None:
        """Before there is a pod, so that its volumes are there when it is mounted."""
        meta, sessions = self.runner.metadata, session_folder(self.runner)
        if needs_fetch(self.runner) or sessions:
            self._site.files.lend(Loan(self.uid, meta.namespace, meta.name, sessions))

    async def _provide(self) -> None:
        spec = self.runner.spec
        if self.fetch is None:
            self.fetch = FetchStatus(total=sum(file.size for file in spec.files))
            self.publish()
        token = await self._token()
        refs = file_refs(self.runner, token)
        await self._site.files.provide(self.uid, refs, self._progress)

    async def _token(self) -> str | None:
        while True:
            try:
                return await read_token(
                    self._site.kube,
                    self.runner.spec.token_secret_ref,
                    self.runner.metadata.namespace,
                )
            except (ApiUnreachableError, ApiError) as err:
                log.warning("runner %s: token not read yet: %s", self.runner.key, err)
                await asyncio.sleep(self._site.timing.busy_s)

    def _progress(self, done: int, total: int, rate: float) -> None:
        before = self.fetch
        if before is not None and before.state == "Verified" and done >= total:
            return  # a second look after a restart found everything
        self.fetch = FetchStatus(state="Fetching", done=done, total=total, rate=int(rate))
        self.publish()

    def _fetch_failed(self, reason: Reason, message: str) -> None:
        before = self.fetch or FetchStatus()
        self.fetch = FetchStatus(
            state="Failed",
            done=before.done,
            total=before.total,
            reason=reason,
            message=message[:1024],
        )
        self.publish()

    # -- looks ---------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            self._wake.clear()
            if self.pod is not None:
                await self._look(self.pod)
            else:
                self._rest(None, self.runner.spec.drain, ended=False)
            self.publish()
            pause = self._pause()
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _pause(self) -> float | None:
        """Seconds to the next look; None: only when something changes."""
        timing = self._site.timing
        if self.pod is None or self.pod.ended:
            return None
        if self.runner.spec.drain is not None:
            return timing.drain_s
        pulse = self.seen.pulse
        if pulse.failed_checks > 0:
            return timing.probe_s  # three in a row are to mean something
        return timing.busy_s if pulse.busy > 0 or not pulse.was_ready else timing.probe_s

    async def _look(self, pod: Pod) -> None:
        look, drain = None, self.runner.spec.drain
        if pod.ip and not pod.ended:
            look = await self._site.probe(target_of(pod.ip, self.runner.spec))
        if pod is not self.pod and (self.pod is None or self.pod.uid != pod.uid):
            return  # it was replaced while we looked: what was seen is another engine's
        was_up = self.is_up
        if look is not None and not self.runner.spec.claim.devices:
            look = replace(look, computing=self._cpu.is_busy)
        self._take(look, pod)
        self._rest(look, drain, ended=pod.ended)
        # A drain is looked at often; what it holds is not asked each time.
        if self._site.clock() - self._measured_at >= self._site.timing.busy_s:
            await self._measure(pod)
        if self.is_up and not was_up:
            await self._came_up()
        if self.is_up and not self.versions and pod.ip and self._version_looks < _VERSION_LOOKS:
            self._version_looks += 1
            self.versions = await self._site.versions(pod.ip, control_port(self.runner))

    async def _came_up(self) -> None:
        if self.available_before is not None:
            sample = await self._site.live.sample()
            self._lost = max(0, self.available_before - sample.memory.available)
        self._site.admit.set()

    def _take(self, look: Look | None, pod: Pod) -> None:
        seen, pulse = self.seen, self.seen.pulse
        if look is not None:
            pulse = next_pulse(
                pulse,
                look,
                now=self._site.clock(),
                hang_s=float(self.runner.spec.hang_timeout_seconds),
                draining=self.runner.spec.drain is not None or pod.deleting,
            )
        if pulse.busy > 0:
            self._site.last_busy.note(self.uid, self._site.wall())
        if pulse.state != seen.pulse.state:
            log.info("runner %s: %s after %s", self.runner.key, pulse.state, seen.pulse.state)
            self.seen = replace(seen, pulse=pulse, since=self._site.stamp())
        else:
            self.seen = replace(seen, pulse=pulse)

    def _rest(self, look: Look | None, drain: DrainOrder | None, *, ended: bool) -> None:
        """``drain`` is the order that stood when the look began: one that came later was not
        known to gateways yet, and what they sent meanwhile may not have been seen."""
        rest = None
        if drain is not None and drain == self.runner.spec.drain:
            rest = next_rest(
                self.seen.rest,
                look,
                order=drain.since,
                was_ready=self.is_up,
                ended=ended,
                now=self._site.wall(),
            )
        self.seen = replace(self.seen, rest=rest)

    async def measure_now(self) -> None:
        """Measure what it holds, for a decision that depends on it."""
        if self.pod is not None:
            await self._measure(self.pod)

    async def _measure(self, pod: Pod) -> None:
        self._measured_at = self._site.clock()
        held = with_lost(await self._site.live.measure(pod.uid), self._lost)
        self._cpu = self._cpu.next(held.cpu_s, at=self._measured_at)
        if held.host is None and not held.devices:
            return
        claimed = [claim.device for claim in self.runner.spec.claim.devices]
        memory = next_memory(self.seen.memory, held, claimed)
        self.seen = replace(self.seen, memory=memory, held=held)

    # -- telling -------------------------------------------------------------------------------

    def status(self) -> AgentStatus:
        """The whole subtree as it is now."""
        return AgentStatus(
            epoch=self.runner.spec.epoch,
            fetch=self.fetch,
            admission=self.admission,
            health=health_of(self.seen),
            memory=self.seen.memory,
            quiet=quiet_of(self.seen, self.runner.spec.drain),
            versions=self.versions,
        )

    def publish(self) -> None:
        """Write the status when it differs enough from what was written."""
        if self.is_leaving and self.pod is None:
            return
        status, now = self.status(), self._site.clock()
        passed = now - self._written_at
        if not is_worth_writing(self._written, status, passed_s=passed):
            return
        self._write(status, now)

    def publish_memory(self) -> None:
        """Write what it holds, together with the node's inventory, when that moved by a quantum."""
        status = self.status()
        if memory_has_moved(self._written, status):
            self._write(status, self._site.clock())

    def _write(self, status: AgentStatus, now: float) -> None:
        self._written, self._written_at = status, now
        self._site.writer.put(self.subject, {"agent": status.wire()})


def _orders(runner: Runner) -> tuple[object, ...]:
    """What others say of a Runner; the agent's own words, coming back, are no news."""
    status, meta = runner.status, runner.metadata
    return (runner.spec, meta.deletion_timestamp, status.pod, status.up_since)
