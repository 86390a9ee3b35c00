"""How do the statuses of a pass get written? By server-side apply, each only when it differs."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from berth.api.meta import Resource, Wire, timestamp
from berth.api.model import Model
from berth.api.residency import Residency, ResidencyStatus
from berth.controller.apply import MANAGER, Hands
from berth.controller.holds import (
    HOLDER_SILENT_S,
    Grant,
    HoldsSeen,
    HoldView,
    grant_holds,
    hold_status,
    owed_models,
)
from berth.controller.ids import shared_ids
from berth.controller.observe import Observation, Remembered
from berth.controller.observe_models import priced_of
from berth.controller.observe_runners import Entry
from berth.controller.outdated import shape_since, without_outdated_refusal
from berth.controller.status_model import ModelFacts, model_status
from berth.controller.status_others import (
    models_by_profile,
    profile_status,
    residency_status,
)
from berth.controller.status_runner import RunnerReport, runner_report
from berth.controller.status_switch import switch_news
from berth.controller.store import Broken, Table
from berth.controller.telling import Happening
from berth.kube.client import ApiError, ApiUnreachableError
from berth.kube.refs import ref_of
from berth.planner.actions import Plan, Refuse
from berth.planner.state import State as Snapshot
from berth.reasons import ConditionType, Reason, State

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Resource)
_AT_ONCE = 8
_RESIDENCY_PAUSE_S = 30.0


@dataclass(frozen=True)
class Pass:
    """What one pass saw and decided."""

    seen: Observation
    plan: Plan
    now: float
    copies: Mapping[str, tuple[Reason, str]] = field(default_factory=dict)
    """What is to be warned of about copies in host memory, by Residency."""
    hold_silence_s: float = HOLDER_SILENT_S


@dataclass
class Written:
    """Writes of one pass, for metrics and tests."""

    statuses: int = 0
    refusals: list[Refuse] = field(default_factory=list)


class Publisher:
    """The statuses of one pass."""

    def __init__(self, hands: Hands, remembered: Remembered, one: Pass) -> None:
        self._hands = hands
        self._remembered = remembered
        self._pass = one
        self._limit = asyncio.Semaphore(_AT_ONCE)
        self.written = Written()
        self._grants = grant_holds(hands.store.holds, hands.store.nodes)
        self._shape_since = shape_since(one.seen.state, remembered.sightings)

    async def run(self) -> Written:
        """Runners first: gateways send by their addresses."""
        reports = self._runner_reports()
        await self._all([self._runner(report) for report in reports])
        by_model: dict[str, list[RunnerReport]] = defaultdict(list)
        for report in reports:
            if report.runner.is_part:
                continue
            meta = report.runner.metadata
            by_model[f"{meta.namespace}/{report.runner.spec.model_ref.name}"].append(report)
        await self._all([self._model(facts) for facts in self._model_facts(by_model)])
        await self._all(self._others())
        await self._all(
            [self._broken(broken) for broken in self._hands.store.models.broken.values()]
        )
        return self.written

    async def _all(self, writes: Iterable[Coroutine[None, None, None]]) -> None:
        await asyncio.gather(*writes)

    # Runners.

    def _runner_reports(self) -> list[RunnerReport]:
        reports = []
        for entry in self._pass.seen.entries:
            if entry.runner is None or self._gone(entry):
                continue
            report = runner_report(entry, self._pass.now)
            if report is not None:
                reports.append(report)
        return reports

    def _gone(self, entry: Entry) -> bool:
        """This pass has deleted it."""
        return entry.runner is None or self._hands.store.runners.get(entry.runner.key) is None

    async def _runner(self, report: RunnerReport) -> None:
        runner = report.runner
        before = runner.status.model_copy(update={"agent": None})
        await self._write(self._hands.store.runners, runner, before, report.status)

    # Models.

    def _model_facts(self, reports: Mapping[str, list[RunnerReport]]) -> list[ModelFacts]:
        one, plan = self._pass, self._pass.plan
        verdicts = {verdict.model: verdict for verdict in plan.verdicts}
        refusals = {a.model: a for a in plan.actions if isinstance(a, Refuse)}
        seen = {model.key: model for model in one.seen.state.models}
        entries: dict[str, list[Entry]] = defaultdict(list)
        for entry in one.seen.entries:
            if entry.runner is not None and entry.runner.is_part:
                continue
            entries[entry.model_key].append(entry)
        shared = shared_ids(one.seen.models.values())
        has_gpus = any(node.devices for node in one.seen.state.nodes)
        found = []
        for key, model in one.seen.models.items():
            demand, claim = self._hands.store.demands.get(key), shared.get(key)
            found.append(
                ModelFacts(
                    model=model,
                    seen=seen[key],
                    priced=priced_of(one.seen.prices, model),
                    standing=self._remembered.rollouts.standings().get(key),
                    entries=entries.get(key, []),
                    reports=reports.get(key, []),
                    verdict=verdicts.get(key),
                    refusal=refusals.get(key),
                    restarts=seen[key].restarts,
                    used=demand.status.used if demand else None,
                    first_holder=claim.holder if claim else "",
                    measured=self._remembered.history.measurements.told(key),
                    shared_id=claim.id if claim else "",
                    holds=HoldsSeen(self._grants),
                    has_gpus=has_gpus,
                )
            )
        return found

    async def _model(self, facts: ModelFacts) -> None:
        before, model = facts.model.status, facts.model
        after = without_outdated_refusal(
            model_status(facts, self._pass.now),
            refused_now=facts.refusal is not None,
            since=self._shape_since,
        )
        await self._write(self._hands.store.models, model, before, after)
        for report in facts.reports:
            if report.loaded_s is not None:
                name, node = report.runner.metadata.name, report.runner.spec.node_name
                text = f"{name} on {node} is up after {report.loaded_s} s"
                await self._hands.teller.tell(model, Happening.LOADED, text)
        for what, text in switch_news(before, after):
            await self._hands.teller.tell(model, what, text)
        refusal = after.last_refusal
        told = before.last_refusal
        if refusal is not None and (told is None or told.reason != refusal.reason):
            if facts.refusal is not None:
                self.written.refusals.append(facts.refusal)
            await self._hands.teller.tell(
                model, Happening.REFUSED, f"{refusal.reason}: {refusal.message}"
            )

    async def _broken(self, broken: Broken) -> None:
        """A Model that does not parse is told so and left out."""
        now = self._pass.now
        since = self._remembered.sightings.since("broken", broken.uid, broken.message, now)
        if since != now:
            return
        at = self._hands.clock()
        condition = {
            "type": str(ConditionType.READY),
            "status": "False",
            "reason": str(State.FAILED),
            "message": f"{Reason.UNSUPPORTED}: this release cannot read it: {broken.message}"[
                :1024
            ],
            "observedGeneration": broken.generation,
            "lastTransitionTime": timestamp(at),
        }
        status = {"observedGeneration": broken.generation, "conditions": [condition]}
        try:
            await self._hands.kube.apply_status(
                ref_of(Model), broken.name, status, manager=MANAGER, namespace=broken.namespace
            )
        except ApiError as err:
            log.warning("status of model %s/%s: %s", broken.namespace, broken.name, err)

    # Profiles, residencies, holds.

    def _others(self) -> list[Coroutine[None, None, None]]:
        return [*self._profiles(), *self._residencies(), *self._holds()]

    def _profiles(self) -> Iterator[Coroutine[None, None, None]]:
        store, now = self._hands.store, self._pass.now
        wanted = {
            key: f"{model.metadata.namespace}/{model.spec.profile}"
            for key, model in self._pass.seen.models.items()
            if model.spec.profile
        }
        counts = models_by_profile((key for key, _ in store.profiles.items()), wanted)
        for key, profile in list(store.profiles.items()):
            after = profile_status(profile, counts[key], now)
            yield self._write(store.profiles, profile, profile.status, after)

    def _residencies(self) -> Iterator[Coroutine[None, None, None]]:
        store, now = self._hands.store, self._pass.now
        for residency in list(store.residencies):
            one, name = self._pass, residency.metadata.name
            after = residency_status(
                residency, one.seen.state, one.plan, now, warning=one.copies.get(name)
            )
            if self._too_soon(residency, after):
                continue
            yield self._write(store.residencies, residency, residency.status, after)

    def _too_soon(self, residency: Residency, after: ResidencyStatus) -> bool:
        """Written at most every 30 s: it sums up many objects, any of which changes often."""
        if residency.status == after:
            return False
        now, uid = self._pass.now, residency.metadata.uid
        sightings = self._remembered.sightings
        fresh = sightings.first("residency-written", uid)
        since = sightings.since("residency-written", uid, True, now)
        if not fresh and now - since < _RESIDENCY_PAUSE_S:
            return True
        sightings.put("residency-written", uid, True, now)
        return False

    def _holds(self) -> Iterator[Coroutine[None, None, None]]:
        store, now = self._hands.store, self._pass.now
        for hold in list(store.holds):
            name = hold.metadata.name
            grant = self._grants.get(name, Grant(hold, ()))
            occupied = _occupied(self._pass.seen.state, grant.nodes)
            owed = owed_models(store.models, name)
            view = HoldView(grant.nodes, occupied, grant.waits_for, owed)
            after = hold_status(
                hold,
                view,
                self._remembered.sightings,
                now,
                silent_s=self._pass.hold_silence_s,
            )
            yield self._write(store.holds, hold, hold.status, after)

    # Writing.

    async def _write(self, table: Table[R], obj: R, before: Wire, after: Wire) -> None:
        """Apply a status that differs from the one seen; an object that is gone is let be."""
        if before == after or not self._hands.leads():
            return
        meta = obj.metadata
        async with self._limit:
            try:
                answer = await self._hands.kube.apply_status(
                    table.ref, meta.name, after.wire(), manager=MANAGER, namespace=meta.namespace
                )
            except ApiError as err:
                if not err.not_found:
                    log.warning("status of %s %s: %s", table.ref.kind, obj.key, err)
                return
            except ApiUnreachableError as err:
                log.warning("status of %s %s: %s", table.ref.kind, obj.key, err)
                return
        self.written.statuses += 1
        table.put(answer)


def _occupied(state: Snapshot, nodes: tuple[str, ...]) -> int:
    """Runners and copies of weights in host memory that are still on the nodes."""
    runners = sum(1 for runner in state.runners if runner.node in nodes)
    return runners + sum(len(node.copies) for node in state.nodes if node.name in nodes)
