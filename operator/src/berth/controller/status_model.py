"""What should a Model's status say? One value, computed once per pass."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from berth.api.meta import ANNOTATION_LOAD, ANNOTATION_UNLOAD, Condition, timestamp
from berth.api.model import (
    FactsStatus,
    LastRefusal,
    MeasuredNeed,
    Model,
    ModelRunner,
    ModelStatus,
    Needs,
    PlaceRefusal,
)
from berth.controller.conditions import ConditionSheet
from berth.controller.holds import HoldsSeen, model_hold
from berth.controller.observe_runners import Entry
from berth.controller.outcomes import Outcome, judge_waiting
from berth.controller.priced import Priced
from berth.controller.rollouts import Standing
from berth.controller.status_runner import RunnerReport, state_word
from berth.controller.status_switch import previous_profile, put_switch
from berth.manifests.names import model_selector
from berth.planner.actions import PlaceNo, Refuse, Verdict
from berth.planner.state import Model as ModelSeen
from berth.planner.state import Restarts, Stage
from berth.reasons import ConditionType, Reason, State

_SOURCE_REASONS = frozenset(
    {
        Reason.INVALID_HEADER,
        Reason.MISSING_SHARD,
        Reason.SOURCE_UNAUTHORIZED,
        Reason.SOURCE_NOT_FOUND,
        Reason.CLAIM_NOT_FOUND,
        Reason.UNSCHEDULABLE,
        Reason.IMAGE_PULL,
        Reason.ADMISSION_ERROR,
        Reason.SOURCE_UNREACHABLE,
        Reason.SOURCE_FORBIDDEN,
        Reason.SOURCE_CHANGED,
        Reason.SOURCE_TOO_SLOW,
        Reason.SECRET_NOT_FOUND,
        Reason.NEEDS_UNKNOWN,
    }
)
_HELD_PLACES = 16
_LOADS_KEPT = 5
_RUNNERS_SHOWN = 128
_WAS_UP = frozenset({Stage.UP, "Draining"})


@dataclass(frozen=True)
class ModelFacts:
    """All that a Model's status is computed from."""

    model: Model
    seen: ModelSeen
    priced: Priced
    entries: tuple[Entry, ...]
    reports: tuple[RunnerReport, ...]
    verdict: Verdict | None
    refusal: Refuse | None
    restarts: Restarts
    used: str | None
    first_holder: str = ""
    """Key of the elder Model that holds one of its ids; empty where it holds them itself."""
    shared_id: str = ""
    standing: Standing | None = None
    measured: Sequence[MeasuredNeed] = ()
    holds: HoldsSeen = field(default_factory=lambda: HoldsSeen({}))
    has_gpus: bool = False
    """Some node of the cluster has a GPU: the needs shown are those on one."""


def model_status(facts: ModelFacts, now: float) -> ModelStatus:
    """The whole status; equal to the one before when nothing happened."""
    model, priced, before = facts.model, facts.priced, facts.model.status
    runners = _runners(facts)
    up = [entry for entry in facts.entries if entry.stage is Stage.UP]
    return ModelStatus(
        observed_generation=priced.generation or model.metadata.generation,
        conditions=_conditions(facts, now),
        id=model.served_id,
        facts=_facts(facts),
        needs=_needs(facts),
        active_profile=_active_profile(facts),
        previous_profile=previous_profile(before, facts.standing),
        last_good=facts.standing.last_good if facts.standing else before.last_good,
        trial=facts.standing.trial if facts.standing else before.trial,
        context_length=priced.context_length or None,
        parallel=priced.parallel,
        apis=list(priced.apis) or before.apis,
        prefix_cache=priced.has_prefix_cache if priced.apis else before.prefix_cache,
        replicas=len(up),
        selector=model_selector(model.metadata.name),
        runners=runners,
        last_used=facts.used or before.last_used,
        load_seconds=_load_seconds(facts),
        autoloaded=_autoloaded(facts),
        measured=list(facts.measured),
        last_refusal=_last_refusal(facts, now),
        restarts=facts.restarts.count,
        next_retry=timestamp(facts.restarts.next_retry) if facts.restarts.next_retry else None,
        load_handled=_load_handled(facts),
        unload_handled=_unload_handled(facts)[0],
        hold=model_hold(model, facts.seen, facts.entries, facts.refusal, facts.holds),
        not_before=_not_before(facts),
    )


def _runners(facts: ModelFacts) -> list[ModelRunner]:
    addresses = {r.runner.metadata.name: r.status.address or "" for r in facts.reports}
    shown = []
    for entry in facts.entries:
        runner = entry.runner
        if runner is None:
            continue
        state, name = state_word(entry), runner.metadata.name
        shown.append(
            ModelRunner(
                name=name,
                node=runner.spec.node_name,
                device=",".join(f"cuda:{d.index}" for d in runner.spec.claim.devices) or "cpu",
                state=state,
                address=addresses.get(name, "") if state == Stage.UP else "",
            )
        )
    return sorted(shown, key=lambda r: (r.state != Stage.UP, r.name))[:_RUNNERS_SHOWN]


def _facts(facts: ModelFacts) -> FactsStatus | None:
    """What the header said; kept while it is read again, but never another source's."""
    stored, priced = facts.model.status.facts, facts.priced
    if priced.facts is not None or stored is None:
        return priced.facts
    return None if priced.source_hash and stored.source_hash != priced.source_hash else stored


def _needs(facts: ModelFacts) -> Needs | None:
    """The arithmetic of the hardware that it runs on, or would be tried on first."""
    claims = [e.runner.spec.claim for e in facts.entries if e.runner is not None]
    on_gpu = any(c.devices for c in claims) if claims else facts.has_gpus
    cpu_only = facts.seen.device == "cpu" or not on_gpu
    shown = facts.priced.shown
    return shown.get("cpu" if cpu_only else "cuda") or shown.get("cuda") or shown.get("cpu")


def _active_profile(facts: ModelFacts) -> str | None:
    good = facts.standing.last_good if facts.standing else None
    if good is not None:
        return good.profile or None
    for entry in facts.entries:
        if entry.stage is Stage.UP and entry.runner is not None:
            return entry.runner.spec.profile or None
    return facts.model.status.active_profile or facts.priced.profile or None


def _load_seconds(facts: ModelFacts) -> list[int]:
    new = [report.status.load_seconds or 0 for report in came_up(facts)]
    return (new + facts.model.status.load_seconds)[:_LOADS_KEPT]


_TURN_IS_OVER = frozenset({Reason.IDLE, Reason.UNLOADED, Reason.SUSPENDED, Reason.SCALED_DOWN})
"""Ends that were meant. After any other one the model is loaded again as soon as there is room."""


def _autoloaded(facts: ModelFacts) -> bool | None:
    """Whether ``autoload`` has had its turn.

    1. A runner that is up and stays: yes.
    2. One that failed, is lost, or drains for others or with its node: no, room may come back.
    3. Else as before; unset for a model that was never up.
    """
    orders = {e.uid: e.runner.spec.drain for e in facts.entries if e.runner is not None}
    if any(e.stage is Stage.UP and orders.get(e.uid) is None for e in facts.entries):
        return True
    had_it = facts.seen.autoload_done
    if not had_it and facts.model.status.autoloaded is None:
        return None
    drained_for = {order.reason for order in orders.values() if order is not None}
    failed = any(entry.stage in (Stage.FAILED, Stage.LOST) for entry in facts.entries)
    return had_it and not failed and drained_for <= _TURN_IS_OVER


def came_up(facts: ModelFacts) -> list[RunnerReport]:
    """Runners that are up and were not when the Model's status was last written.

    A load is noted with the very status that first shows it, however late that is written; a Model
    with more runners than are shown notes none any more.
    """
    before = facts.model.status.runners
    if len(before) >= _RUNNERS_SHOWN:
        return []
    known = {runner.name for runner in before if runner.state in _WAS_UP}
    return [
        report
        for report in facts.reports
        if report.status.state == Stage.UP and report.runner.metadata.name not in known
    ]


# Conditions.


def _conditions(facts: ModelFacts, now: float) -> list[Condition]:
    meta = facts.model.metadata
    sheet = ConditionSheet(facts.model.status.conditions, generation=meta.generation, now=now)
    state, message = ready_state(facts)
    sheet.put(ConditionType.READY, "True" if state is State.UP else "False", state, message)
    _put_accepted(sheet, facts.priced)
    _put_header(sheet, facts.priced)
    _put_placed(sheet, facts)
    put_switch(sheet, facts.standing, entries=facts.entries, refusal=facts.refusal)
    if facts.first_holder:
        text = f"the id {facts.shared_id} belongs to model {facts.first_holder}, which is older"
        sheet.put(ConditionType.ID_UNIQUE, "False", Reason.DUPLICATE_ID, text)
    else:
        sheet.put(ConditionType.ID_UNIQUE, "True", Reason.ACCEPTED)
    return sheet.said()


def ready_state(facts: ModelFacts) -> tuple[State, str]:
    """The STATE column and its sentence: the plan's verdict, but never a lie about what is up.

    1. Up only with a runner that is routed to; a runner that is up makes the Model Up.
    2. Otherwise what the plan said, with what holds a start up, where something does.
    """
    verdict = facts.verdict
    routed = [report for report in facts.reports if report.status.address]
    said = verdict.state if verdict else State.DOWN
    message = verdict.message if verdict else ""
    if said is State.UP and not routed:
        return State.STARTING, "its runner does not answer at the moment"
    if said is State.STARTING:
        held_up = _held_up(facts)
        if held_up is not None:
            return said, f"{held_up.reason}: {held_up.message}"
    return said, message


def _held_up(facts: ModelFacts) -> Outcome | None:
    for entry in facts.entries:
        if entry.pod is not None and entry.stage is Stage.STARTING:
            outcome = judge_waiting(entry.pod)
            if outcome is not None:
                return outcome
    return None


def _put_accepted(sheet: ConditionSheet, priced: Priced) -> None:
    blocked = priced.blocked
    if blocked is None or blocked in _SOURCE_REASONS or blocked is Reason.READING_HEADER:
        sheet.put(
            ConditionType.ACCEPTED, "True", Reason.ACCEPTED, "; ".join(priced.warnings)[:1024]
        )
    else:
        sheet.put(ConditionType.ACCEPTED, "False", priced.word, priced.blocked_message)


def _put_header(sheet: ConditionSheet, priced: Priced) -> None:
    if priced.blocked is Reason.READING_HEADER:
        sheet.put(
            ConditionType.HEADER_READ, "Unknown", Reason.READING_HEADER, priced.blocked_message
        )
    elif priced.blocked in _SOURCE_REASONS:
        sheet.put(ConditionType.HEADER_READ, "False", priced.word, priced.blocked_message)
    elif priced.facts is not None:
        sheet.put(ConditionType.HEADER_READ, "True", Reason.ACCEPTED)


def _put_placed(sheet: ConditionSheet, facts: ModelFacts) -> None:
    """Whether it has a place, and if not why: a failure that is not over yet comes first."""
    up = [entry for entry in facts.entries if entry.stage is Stage.UP]
    placed = [entry for entry in facts.entries if entry.stage in (Stage.RESERVED, Stage.STARTING)]
    held_up, restarts = _held_up(facts), facts.restarts
    if up:
        sheet.put(ConditionType.PLACED, "True", Reason.UP)
    elif held_up is not None:
        sheet.put(ConditionType.PLACED, "False", held_up.reason, held_up.message)
    elif restarts.reason is not None:
        sheet.put(ConditionType.PLACED, "False", restarts.reason, restarts.message)
    elif placed:
        sheet.put(ConditionType.PLACED, "True", Reason.RESERVED)
    elif facts.refusal is not None:
        sheet.put(ConditionType.PLACED, "False", facts.refusal.reason, facts.refusal.message)
    elif facts.verdict is not None:
        sheet.put(ConditionType.PLACED, "False", facts.verdict.reason, facts.verdict.message)


# Refusals.


def _last_refusal(facts: ModelFacts, now: float) -> LastRefusal | None:
    """Kept until a later pass places the model; ``at`` is when this refusal was first given."""
    before = facts.model.status.last_refusal
    if any(entry.stage is not Stage.FAILED for entry in facts.entries if entry.runner is not None):
        return None
    if facts.refusal is None:
        return before
    said = LastRefusal(
        reason=facts.refusal.reason,
        message=facts.refusal.message[:4096],
        places=group_places(facts.refusal.places),
        at=timestamp(now),
    )
    if before is not None and before.model_copy(update={"at": said.at}) == said:
        return before
    return said


def group_places(places: Sequence[PlaceNo]) -> list[PlaceRefusal]:
    """At most 16, grouped by reason and class of place, each with its count and best example."""
    groups: dict[tuple[str, bool, int], list[PlaceNo]] = {}
    for place in places:
        groups.setdefault((place.reason, bool(place.device), place.capacity >> 30), []).append(
            place
        )
    shown = []
    for members in groups.values():
        best = max(members, key=lambda p: (p.have - p.need, p.have))
        shown.append(
            PlaceRefusal(
                reason=best.reason,
                count=len(members),
                node=best.node,
                device=best.device,
                need=max(0, best.need),
                have=max(0, best.have),
                capacity=max(0, best.capacity),
                message=best.message[:1024],
            )
        )
    shown.sort(key=lambda p: (-(p.have - p.need), p.reason, p.node))
    return shown[:_HELD_PLACES]


# By hand.


def _load_handled(facts: ModelFacts) -> str | None:
    """The wish is granted once a runner is up, or answered by a failure or a final refusal."""
    value = facts.model.metadata.annotations.get(ANNOTATION_LOAD)
    asked, before = facts.seen.load_asked, facts.model.status.load_handled
    if not value or asked is None:
        return before
    up = any(entry.stage is Stage.UP for entry in facts.entries)
    failed_at = facts.restarts.last_failed
    failed = failed_at is not None and failed_at >= asked
    refused = facts.refusal is not None and facts.refusal.final
    return value[:128] if up or failed or refused else before


def _unload_handled(facts: ModelFacts) -> tuple[str | None, bool]:
    """The wish is granted once every runner of the Model is on its way out."""
    value = facts.model.metadata.annotations.get(ANNOTATION_UNLOAD)
    before = facts.model.status.unload_handled
    if not value or facts.seen.unload_asked is None:
        return before, False
    staying = [
        entry
        for entry in facts.entries
        if entry.runner is not None
        and entry.runner.spec.drain is None
        and entry.stage not in (Stage.STOPPING, Stage.LOST)
    ]
    return (before, False) if staying else (value[:128], True)


def _not_before(facts: ModelFacts) -> str | None:
    if _unload_handled(facts)[1] and facts.seen.unload_asked is not None:
        return timestamp(facts.seen.unload_asked)
    return facts.model.status.not_before
