"""Which statuses does a pass write? Each that differs; they go out beside the passes that follow."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from berth.api.hold import Hold
from berth.api.meta import Resource, Wire, timestamp
from berth.api.model import Model, ModelStatus
from berth.api.profile import Profile
from berth.api.residency import Residency, ResidencyStatus
from berth.api.runner import Runner, RunnerStatus
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
from berth.controller.outbox import Rank
from berth.controller.outdated import shape_since, without_outdated_refusal
from berth.controller.status_model import ModelFacts, came_up, model_status
from berth.controller.status_others import (
    models_by_profile,
    profile_status,
    residency_status,
)
from berth.controller.status_runner import RunnerReport, runner_report
from berth.controller.status_switch import switch_news
from berth.controller.store import Broken, Table
from berth.controller.telling import Happening
from berth.kube.client import ApiError, Object
from berth.kube.refs import ref_of
from berth.planner.actions import Plan, Prepare, Refuse, Reserve
from berth.planner.state import State as Snapshot
from berth.reasons import ConditionType, Reason, State

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Resource)
W = TypeVar("W", bound=Wire)
Other = TypeVar("Other", Profile, Residency, Hold)
_RESIDENCY_PAUSE_S = 30.0
_BREATH = 200
"""Models looked at before others get their turn: the whole fleet takes seconds at the first pass."""


@dataclass(frozen=True)
class Pass:
    """What one pass saw and decided."""

    seen: Observation
    plan: Plan
    now: float
    copies: Mapping[str, tuple[Reason, str]] = field(default_factory=dict)
    """What is to be warned of about copies in host memory, by Residency."""
    hold_silence_s: float = HOLDER_SILENT_S


class Publisher:
    """The statuses of one pass."""

    def __init__(self, hands: Hands, remembered: Remembered, one: Pass) -> None:
        self._hands = hands
        self._remembered = remembered
        self._pass = one
        self._grants = grant_holds(hands.store.holds, hands.store.nodes)
        self._shape_since = shape_since(one.seen.state, remembered.sightings)

    async def run(self) -> None:
        """Work out every status and post those that differ. Nothing is waited for but other work's turn.

        A Model that was given a place just now is left to the pass that its new Runner brings, but
        for one on trial: what has been tried must not be forgotten.
        """
        by_model: dict[str, list[RunnerReport]] = defaultdict(list)
        for entry in self._pass.seen.entries:
            report = self._runner(entry)
            if report is not None and not report.runner.is_part:
                by_model[entry.model_key].append(report)
        placed = {a.model for a in self._pass.plan.actions if isinstance(a, Prepare | Reserve)}
        for number, facts in enumerate(self._model_facts(by_model)):
            on_trial = facts.standing is not None and facts.standing.trial is not None
            if on_trial or facts.model.key not in placed:
                self._model(facts)
            if number % _BREATH == _BREATH - 1:
                await asyncio.sleep(0)
        self._profiles()
        self._residencies()
        self._holds()
        for broken in self._hands.store.models.broken.values():
            self._broken(broken)
        self._remembered.reports.forget_untouched()
        self._remembered.statuses.forget_untouched()

    # Runners.

    def _runner(self, entry: Entry) -> RunnerReport | None:
        """Its report; None once it is gone, by this very pass it may be."""
        runner = entry.runner
        if runner is None or self._hands.store.runners.get(runner.key) is None:
            return None
        report = self._remembered.reports.get(
            entry.uid,
            (runner, entry.pod, entry.stage, entry.outcome),
            lambda: runner_report(entry, runner, self._pass.now),
        )
        before = runner.status.model_copy(update={"agent": None})
        news = None if report.status == before else report.status
        rank = Rank.WORDS if report.status.address == before.address else Rank.ROUTES
        self._post(runner, news, partial(self._write_runner, runner), rank)
        return report

    async def _write_runner(self, runner: Runner, after: RunnerStatus) -> None:
        table = self._hands.store.runners
        await self._write(table, runner, table.put, after)

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
                    entries=tuple(entries.get(key, ())),
                    reports=tuple(reports.get(key, ())),
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

    def _model(self, facts: ModelFacts) -> None:
        status = self._remembered.statuses.get(
            facts.model.key,
            (facts, self._shape_since),
            lambda: self._model_news(facts),
        )
        self._post(facts.model, status, partial(self._tell_model, facts))

    def _model_news(self, facts: ModelFacts) -> ModelStatus | None:
        """The Model's status; None where it says so already."""
        after = without_outdated_refusal(
            model_status(facts, self._pass.now),
            refused_now=facts.refusal is not None,
            since=self._shape_since,
        )
        return None if after == facts.model.status else after

    async def _tell_model(self, facts: ModelFacts, after: ModelStatus) -> None:
        """Write it; what has happened is told once, with the status that first shows it."""
        model, before = facts.model, facts.model.status
        table = self._hands.store.models
        if not await self._write(table, model, table.wrote, after):
            return
        for report in came_up(facts):
            name, node = report.runner.metadata.name, report.runner.spec.node_name
            text = f"{name} on {node} is up after {report.status.load_seconds} s"
            self._hands.teller.tell(model, Happening.LOADED, text)
        for what, text in switch_news(before, after):
            self._hands.teller.tell(model, what, text)
        refusal, told = after.last_refusal, before.last_refusal
        if refusal is not None and (told is None or told.reason != refusal.reason):
            if facts.refusal is not None:
                self._hands.outbox.written.refusals.append(facts.refusal)
            text = f"{refusal.reason}: {refusal.message}"
            self._hands.teller.tell(model, Happening.REFUSED, text)

    def _broken(self, broken: Broken) -> None:
        """A Model that does not parse is told so and left out."""
        now = self._pass.now
        since = self._remembered.sightings.since("broken", broken.uid, broken.message, now)
        if since == now:
            job = partial(self._tell_broken, broken, _broken_status(broken, self._hands.clock()))
            self._hands.outbox.post(("Model", broken.uid), broken, job)

    async def _tell_broken(self, broken: Broken, status: Object) -> None:
        try:
            await self._hands.kube.apply_status(
                ref_of(Model), broken.name, status, manager=MANAGER, namespace=broken.namespace
            )
        except ApiError as err:
            log.warning("status of model %s/%s: %s", broken.namespace, broken.name, err)

    # Profiles, residencies, holds.

    def _profiles(self) -> None:
        table, now = self._hands.store.profiles, self._pass.now
        wanted = {
            key: f"{model.metadata.namespace}/{model.spec.profile}"
            for key, model in self._pass.seen.models.items()
            if model.spec.profile
        }
        counts = models_by_profile((key for key, _ in table.items()), wanted)
        for key, profile in list(table.items()):
            self._other(table, profile, profile_status(profile, counts[key], now))

    def _residencies(self) -> None:
        table, one = self._hands.store.residencies, self._pass
        for residency in list(table):
            warning = one.copies.get(residency.metadata.name)
            after = residency_status(residency, one.seen.state, one.plan, one.now, warning=warning)
            if not self._too_soon(residency, after):
                self._other(table, residency, after)

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

    def _holds(self) -> None:
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
            self._other(store.holds, hold, after)

    def _other(self, table: Table[Other], obj: Other, after: Wire) -> None:
        async def write(news: Wire) -> None:
            await self._write(table, obj, table.put, news)

        self._post(obj, None if after == obj.status else after, write)

    # Writing.

    def _post(
        self,
        obj: Resource,
        news: W | None,
        write: Callable[[W], Awaitable[None]],
        rank: Rank = Rank.WORDS,
    ) -> None:
        """A status that differs waits for its turn; one that is right again does not go out."""
        key = (obj.kind, obj.metadata.uid)
        if news is None:
            self._hands.outbox.drop(key)
        else:
            self._hands.outbox.post(key, news, partial(write, news), rank=rank)

    async def _write(
        self, table: Table[R], obj: R, keep: Callable[[Object], None], after: Wire
    ) -> bool:
        """Apply a status; an object that is gone is let be, and False."""
        if not self._hands.leads():
            return False
        meta = obj.metadata
        try:
            answer = await self._hands.kube.apply_status(
                table.ref, meta.name, after.wire(), manager=MANAGER, namespace=meta.namespace
            )
        except ApiError as err:
            if not err.not_found:
                raise
            return False
        self._hands.outbox.written.statuses += 1
        keep(answer)
        return True


def _occupied(state: Snapshot, nodes: tuple[str, ...]) -> int:
    """Runners and copies of weights in host memory that are still on the nodes."""
    runners = sum(1 for runner in state.runners if runner.node in nodes)
    return runners + sum(len(node.copies) for node in state.nodes if node.name in nodes)


def _broken_status(broken: Broken, at: float) -> Object:
    message = f"{Reason.UNSUPPORTED}: this release cannot read it: {broken.message}"
    condition = {
        "type": str(ConditionType.READY),
        "status": "False",
        "reason": str(State.FAILED),
        "message": message[:1024],
        "observedGeneration": broken.generation,
        "lastTransitionTime": timestamp(at),
    }
    return {"observedGeneration": broken.generation, "conditions": [condition]}
