"""What Models and Runners say of themselves, and that they say nothing new when nothing is."""

from dataclasses import replace
from typing import Any

import pytest

from berth.api.meta import timestamp
from berth.api.model import Model
from berth.controller.observe_runners import entries
from berth.controller.priced import Priced
from berth.controller.sightings import Sightings
from berth.controller.status_model import ModelFacts, group_places, model_status
from berth.controller.status_runner import runner_report
from berth.planner.actions import PlaceNo, Refuse, Verdict
from berth.planner.state import Model as Seen
from berth.planner.state import Restarts
from berth.reasons import ConditionType, Reason, State
from berth.units import Bytes
from controller.objects import GIB, NOW, model, node, pod, runner, store

UP_SINCE = {"upSince": timestamp(NOW - 50), "started": timestamp(NOW - 60)}


def _facts(
    raw: dict[str, Any] | None = None,
    *,
    verdict: Verdict | None = None,
    refusal: Refuse | None = None,
    restarts: Restarts | None = None,
    seen: dict[str, Any] | None = None,
    **kinds: Any,
) -> ModelFacts:
    kinds.setdefault("nodes", [node()])
    found = entries(store(**kinds), Sightings(), NOW)
    reports = [runner_report(entry, entry.runner, NOW) for entry in found if entry.runner]
    return ModelFacts(
        model=Model.model_validate(raw or model()),
        seen=Seen(key="ns/m", uid="uid-m", **(seen or {})),
        priced=Priced(parallel=1),
        entries=tuple(found),
        reports=tuple(reports),
        verdict=verdict,
        refusal=refusal,
        restarts=restarts or Restarts(),
        used=None,
    )


def _ready(facts: ModelFacts) -> tuple[str, str, str]:
    status = model_status(facts, NOW)
    found = next(c for c in status.conditions if c.type == ConditionType.READY)
    return found.status, found.reason, found.message


def _verdict(state: State, reason: Reason = Reason.UP, message: str = "so") -> Verdict:
    return Verdict("ns/m", state, reason, message)


def _placed(facts: ModelFacts) -> tuple[str, str]:
    status = model_status(facts, NOW)
    found = next(c for c in status.conditions if c.type == ConditionType.PLACED)
    return found.status, found.reason


def test_up_with_the_address_that_gateways_send_to() -> None:
    facts = _facts(verdict=_verdict(State.UP), runners=[runner(status=UP_SINCE)], pods=[pod()])
    status = model_status(facts, NOW)
    assert _ready(facts) == ("True", "Up", "so")
    assert status.replicas == 1
    assert [(r.name, r.node, r.device, r.state, r.address) for r in status.runners] == [
        ("m-0", "a", "cpu", "Up", "10.0.0.1:8080")
    ]


def test_a_runner_that_does_not_answer_is_not_routed_to_and_the_model_not_up() -> None:
    facts = _facts(
        verdict=_verdict(State.UP), runners=[runner(status=UP_SINCE)], pods=[pod(ready=False)]
    )
    assert _ready(facts)[:2] == ("False", "Starting")
    assert model_status(facts, NOW).runners[0].address == ""


def test_a_draining_runner_is_not_routed_to() -> None:
    order = {"reason": "Idle", "since": timestamp(NOW), "deadline": timestamp(NOW + 300)}
    facts = _facts(
        verdict=_verdict(State.STOPPING),
        runners=[runner(status=UP_SINCE, drain=order)],
        pods=[pod()],
    )
    shown = model_status(facts, NOW).runners[0]
    assert (shown.state, shown.address) == ("Draining", "")


def test_the_second_look_writes_nothing_new() -> None:
    facts = _facts(verdict=_verdict(State.UP), runners=[runner(status=UP_SINCE)], pods=[pod()])
    first = model_status(facts, NOW)
    again = replace(facts, model=facts.model.model_copy(update={"status": first}))
    assert model_status(again, NOW + 999) == first


def test_a_transition_time_moves_only_with_the_status() -> None:
    facts = _facts(verdict=_verdict(State.DOWN))
    first = model_status(facts, NOW)
    again = replace(
        facts,
        model=facts.model.model_copy(update={"status": first}),
        verdict=_verdict(State.WAITING, message="other words"),
    )
    ready = {c.type: c for c in model_status(again, NOW + 5).conditions}[ConditionType.READY]
    assert (ready.reason, ready.last_transition_time) == ("Waiting", timestamp(NOW))


def _pulling() -> dict[str, Any]:
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    return pod(phase="Pending", ready=False, status={"containerStatuses": [{"state": state}]})


def test_what_holds_a_start_up_has_its_own_reason() -> None:
    facts = _facts(verdict=_verdict(State.STARTING), runners=[runner()], pods=[_pulling()])
    assert _ready(facts) == ("False", "Starting", "ImagePull: no such image")
    assert _placed(facts) == ("False", "ImagePull")


def test_a_failure_keeps_its_reason_between_two_tries() -> None:
    failed = Restarts(count=2, reason=Reason.OOM_KILLED, message="too small", next_retry=NOW + 4)
    waiting = _facts(verdict=_verdict(State.WAITING), restarts=failed)
    trying = _facts(verdict=_verdict(State.STARTING), restarts=failed, runners=[runner()])
    assert _placed(waiting) == _placed(trying) == ("False", "OOMKilled")
    status = model_status(waiting, NOW)
    assert (status.restarts, status.next_retry) == (2, timestamp(NOW + 4))


def test_a_refusal_stays_until_the_model_is_placed_and_keeps_its_time() -> None:
    refusal = Refuse("ns/m", Reason.NEVER_FITS, "too large", final=True)
    facts = _facts(verdict=_verdict(State.WAITING), refusal=refusal)
    first = model_status(facts, NOW)
    assert first.last_refusal is not None
    later = replace(facts, model=facts.model.model_copy(update={"status": first}))
    assert model_status(later, NOW + 9).last_refusal == first.last_refusal
    unasked = replace(later, refusal=None)
    assert model_status(unasked, NOW + 9).last_refusal == first.last_refusal
    placed = replace(unasked, entries=_facts(runners=[runner()]).entries)
    assert model_status(placed, NOW + 9).last_refusal is None


def test_places_are_grouped_by_reason_and_class_with_the_best_example() -> None:
    nos = [
        PlaceNo(f"n{i}", "", Reason.MEMORY, Bytes(9 * GIB), Bytes(i * GIB), Bytes(16 * GIB))
        for i in range(30)
    ] + [PlaceNo("g", "cuda:0", Reason.BUSY, Bytes(9 * GIB), Bytes(0), Bytes(8 * GIB))]
    grouped = group_places(nos)
    assert [(p.reason, p.count, p.node) for p in grouped] == [
        ("Memory", 30, "n29"),
        ("RunnersBusy", 1, "g"),
    ]


@pytest.mark.parametrize(
    ("kinds", "want"),
    [
        pytest.param({}, None, id="not yet"),
        pytest.param({"runners": [runner()], "pods": [pod()]}, "t1", id="it is up"),
        pytest.param({"restarts": Restarts(count=1, last_failed=NOW)}, "t1", id="it failed since"),
        pytest.param(
            {"refusal": Refuse("ns/m", Reason.NEVER_FITS, "no", final=True)}, "t1", id="never"
        ),
        pytest.param({"refusal": Refuse("ns/m", Reason.MEMORY, "no")}, None, id="not now"),
    ],
)
def test_a_load_by_hand_is_handled_when_it_is_answered(
    kinds: dict[str, Any], want: str | None
) -> None:
    raw = model(annotations={"berth.dev/load-requested": "t1"})
    facts = _facts(raw, seen={"load_asked": NOW - 1}, **kinds)
    assert model_status(facts, NOW).load_handled == want


def test_an_unload_by_hand_is_handled_once_all_are_leaving_and_keeps_older_demand_away() -> None:
    raw = model(annotations={"berth.dev/unload-requested": "t1"})
    order = {"reason": "UnloadedByHand", "since": timestamp(NOW), "deadline": timestamp(NOW)}
    staying = _facts(raw, seen={"unload_asked": NOW - 1}, runners=[runner()])
    leaving = _facts(raw, seen={"unload_asked": NOW - 1}, runners=[runner(drain=order)])
    assert model_status(staying, NOW).unload_handled is None
    status = model_status(leaving, NOW)
    assert (status.unload_handled, status.not_before) == ("t1", timestamp(NOW - 1))


def test_a_blocked_model_says_where_it_is_stuck() -> None:
    def said(reason: Reason) -> dict[str, tuple[str, str]]:
        facts = _facts(verdict=_verdict(State.FAILED))
        priced = Priced(blocked=reason, blocked_message="why")
        conditions = model_status(replace(facts, priced=priced), NOW).conditions
        return {c.type: (c.status, c.reason) for c in conditions}

    assert said(Reason.PROFILE_NOT_FOUND)["Accepted"] == ("False", "ProfileNotFound")
    unreachable = said(Reason.SOURCE_UNREACHABLE)
    assert unreachable["HeaderRead"] == ("False", "SourceUnreachable")
    assert unreachable["Accepted"] == ("True", "Accepted")
    assert said(Reason.READING_HEADER)["HeaderRead"] == ("Unknown", "ReadingHeader")


# Runners.


def test_the_pass_that_first_sees_a_runner_up_notes_how_long_it_took() -> None:
    raw = runner(status={"started": timestamp(NOW - 12)})
    (entry,) = entries(store(runners=[raw], pods=[pod()], nodes=[node()]), Sightings(), NOW)
    assert entry.runner is not None
    report = runner_report(entry, entry.runner, NOW)
    assert (report.status.load_seconds, report.status.up_since) == (12, timestamp(NOW))


def test_a_load_is_noted_with_the_status_that_first_shows_it_however_late_and_once() -> None:
    written = UP_SINCE | {"loadSeconds": 10}
    facts = _facts(verdict=_verdict(State.UP), runners=[runner(status=written)], pods=[pod()])
    first = model_status(facts, NOW)
    again = replace(facts, model=facts.model.model_copy(update={"status": first}))
    assert (first.load_seconds, model_status(again, NOW + 5).load_seconds) == ([10], [10])


def test_a_runner_that_was_spared_has_not_come_up_again() -> None:
    before = {"runners": [{"name": "m-0", "node": "a", "state": "Draining"}], "loadSeconds": [10]}
    facts = _facts(
        model(status=before),
        verdict=_verdict(State.UP),
        runners=[runner(status=UP_SINCE)],
        pods=[pod()],
    )
    assert model_status(facts, NOW).load_seconds == [10]


def test_a_failed_runner_keeps_its_first_last_exit() -> None:
    raw = runner()
    kinds = {"runners": [raw], "pods": [pod(phase="Failed")], "nodes": [node()]}
    (entry,) = entries(store(**kinds), Sightings(), NOW)
    assert entry.runner is not None
    first = runner_report(entry, entry.runner, NOW)
    assert first.status.last_exit is not None
    assert (first.status.state, first.status.last_exit.reason) == ("Failed", "CrashLoop")
    later = entry.runner.model_copy(update={"status": first.status})
    again = runner_report(replace(entry, runner=later), later, NOW + 60)
    assert again.status == first.status


UP_AND = {"runners": [runner(status=UP_SINCE)], "pods": [pod()]}


def _leaving(reason: str) -> dict[str, Any]:
    order = {"reason": reason, "since": timestamp(NOW), "deadline": timestamp(NOW + 300)}
    return {"runners": [runner(status=UP_SINCE, drain=order)], "pods": [pod()]}


@pytest.mark.parametrize(
    ("had_it", "kinds", "want"),
    [
        pytest.param(None, {}, None, id="a model that was never up has had no turn"),
        pytest.param(False, UP_AND, True, id="up, it has had its turn"),
        pytest.param(True, {}, True, id="and keeps it when nothing runs"),
        pytest.param(True, _leaving("Idle"), True, id="unloaded for idleness, its turn is over"),
        pytest.param(True, _leaving("MakeRoom"), False, id="what made room comes back with it"),
        pytest.param(True, _leaving("NodeDrained"), False, id="what went with its node comes back"),
        pytest.param(
            True, {"runners": [runner()], "pods": [pod(phase="Failed")]}, False,
            id="what crashed comes back",
        ),
    ],
)  # fmt: skip
def test_when_autoload_has_had_its_turn(
    had_it: bool | None, kinds: dict[str, Any], want: bool | None
) -> None:
    status = {} if had_it is None else {"autoloaded": had_it}
    facts = _facts(
        model(status=status),
        verdict=_verdict(State.UP),
        seen={"autoload_done": bool(had_it)},
        **kinds,
    )
    assert model_status(facts, NOW).autoloaded is want
