"""Who has which node, when does a hold end, and what is loaded again after it?"""

from typing import Any

import pytest

from berth.api.hold import Hold
from berth.api.meta import timestamp
from berth.api.model import Model, ModelHold
from berth.controller.holds import (
    HoldsSeen,
    HoldView,
    grant_holds,
    hold_status,
    model_hold,
    owed_models,
    with_hold,
)
from berth.controller.observe_runners import entries
from berth.controller.sightings import Sightings
from berth.planner.actions import PlaceNo, Refuse
from berth.planner.state import Model as Seen
from berth.planner.state import Restarts
from berth.reasons import Reason
from controller.objects import NOW, hold, model, node, pod, runner, store

HERE = HoldView(("a",))
OVER = [{"type": "Released", "status": "True", "reason": "Released", "lastTransitionTime": "x"}]


def _hold(name: str = "h", **spec: Any) -> Hold:
    conditions, since = spec.pop("conditions", None), spec.pop("since", None)
    raw = hold(name, conditions=conditions, **spec)
    raw["status"]["since"] = since
    return Hold.model_validate(raw)


def _granted(*holds: Hold) -> dict[str, tuple[tuple[str, ...], str]]:
    labelled = [node("a"), node("b"), node("c", labels={"gpu": "yes"})]
    seen = store(nodes=labelled).nodes
    return {name: (g.nodes, g.waits_for) for name, g in grant_holds(holds, seen).items()}


def test_a_hold_has_the_nodes_that_it_names_and_those_that_it_selects() -> None:
    both = _hold("h", nodes=["a"], nodeSelector={"gpu": "yes"})
    assert _granted(both) == {"h": (("a", "c"), "")}


def test_holds_on_other_nodes_do_not_meet() -> None:
    apart = _hold("h1", nodes=["a"]), _hold("h2", nodes=["b"])
    assert _granted(*apart) == {"h1": (("a",), ""), "h2": (("b",), "")}


def test_the_younger_of_two_waits_with_all_its_nodes() -> None:
    elder, younger = _hold("h1", nodes=["a", "b"]), _hold("h2", nodes=["b", "c"])
    assert _granted(younger, elder) == {"h1": (("a", "b"), ""), "h2": ((), "h1")}


def test_a_third_does_not_overtake_one_that_waits() -> None:
    holds = [_hold("h1", nodes=["a"]), _hold("h2", nodes=["a", "b"]), _hold("h3", nodes=["b"])]
    assert _granted(*holds) == {"h1": (("a",), ""), "h2": ((), "h1"), "h3": ((), "h2")}


@pytest.mark.parametrize("over", [{"conditions": OVER}, {"released": True}])
def test_one_that_is_over_keeps_nobody_waiting(over: dict[str, Any]) -> None:
    assert _granted(_hold("h1", nodes=["a"], **over), _hold("h2", nodes=["a"])) == {
        "h2": (("a",), "")
    }


# The status of a hold.


def _said(
    sightings: Sightings, now: float = NOW, view: HoldView = HERE, **spec: Any
) -> dict[str, tuple[str, str]]:
    status = hold_status(_hold(**spec), view, sightings, now)
    return {c.type: (c.status, c.reason) for c in status.conditions}


def test_a_hold_is_held_once_its_nodes_are_empty() -> None:
    assert _said(Sightings(), nodes=["a"])["Held"] == ("True", "Held")


@pytest.mark.parametrize(
    ("view", "message"),
    [
        pytest.param(
            HoldView(("a",), 2),
            "2 of runners and host copies are still on its nodes",
            id="not empty",
        ),
        pytest.param(
            HoldView(waits_for="h0"), "it waits for the hold h0, which came first", id="2"
        ),
        pytest.param(HoldView(), "no node of the cluster is one that it names", id="no such node"),
    ],
)
def test_until_then_it_says_what_it_waits_for(view: HoldView, message: str) -> None:
    status = hold_status(_hold(nodes=["a"]), view, Sightings(), NOW)
    assert [(c.type, c.status, c.message) for c in status.conditions] == [
        ("Held", "False", message)
    ]


def test_since_is_when_it_got_its_nodes_and_not_when_it_began_to_wait() -> None:
    waits = hold_status(_hold(nodes=["a"]), HoldView(waits_for="x"), Sightings(), NOW)
    assert waits.since is None
    begun = hold_status(_hold(nodes=["a"]), HERE, Sightings(), NOW + 5)
    assert begun.since == timestamp(NOW + 5)


def test_a_holder_that_renews_must_go_on_renewing() -> None:
    sightings, first = Sightings(), {"nodes": ["a"], "renewTime": timestamp(NOW)}
    assert "Expired" not in _said(sightings, NOW, **first)
    assert "Expired" not in _said(sightings, NOW + 2399, **first)
    again = first | {"renewTime": timestamp(NOW + 99)}
    assert "Expired" not in _said(sightings, NOW + 2401, **again)
    assert _said(sightings, NOW + 4801, **again)["Expired"] == ("True", "Expired")


def test_a_hold_without_a_renewing_holder_ends_with_its_budget_whoever_leads() -> None:
    spec = {"nodes": ["a"], "budget": "10m", "since": timestamp(NOW)}
    assert "Expired" not in _said(Sightings(), NOW + 599, **spec)
    assert _said(Sightings(), NOW + 600, **spec)["Held"] == ("False", "Expired")


def test_one_that_waits_for_its_turn_spends_no_budget() -> None:
    waits = HoldView(waits_for="x")
    assert "Expired" not in _said(Sightings(), NOW + 9999, waits, nodes=["a"], budget="10m")


def test_a_released_hold_says_so() -> None:
    assert _said(Sightings(), nodes=["a"], released=True) == {
        "Held": ("False", "Released"),
        "Released": ("True", "Released"),
    }


def test_an_expired_hold_stays_expired() -> None:
    over = [OVER[0] | {"type": "Expired", "reason": "Expired", "message": "its budget is spent"}]
    status = hold_status(_hold(nodes=["a"], conditions=over), HERE, Sightings(), NOW)
    assert [(c.type, c.status, c.message) for c in status.conditions] == [
        ("Held", "False", ""),
        ("Expired", "True", "its budget is spent"),
    ]


# What a Model remembers of it.

NOTE = ModelHold(name="h", reason="bench", budget="20m", since=timestamp(NOW), owed=True)
LEAVES = {"reason": "Held", "since": timestamp(NOW), "deadline": timestamp(NOW + 300)}
UP = {"upSince": timestamp(NOW - 50), "started": timestamp(NOW - 60)}
REFUSED = Refuse("ns/m", Reason.HELD, "no", (PlaceNo("a", "", Reason.HELD),))


def _noted(
    before: ModelHold | None = None,
    *,
    refusal: Refuse | None = None,
    seen: dict[str, Any] | None = None,
    is_over: bool = False,
    **kinds: Any,
) -> ModelHold | None:
    found = Model.model_validate(model())
    found.status.hold = before
    taken = _hold(nodes=["a"], reason="bench", budget="20m", since=timestamp(NOW), released=is_over)
    seen_store = store(nodes=[node()], **kinds)
    grants = grant_holds([taken], seen_store.nodes)
    planned = Seen(key="ns/m", uid="uid-m", **(seen or {}))
    mine = entries(seen_store, Sightings(), NOW)
    return model_hold(found, planned, mine, refusal, HoldsSeen(grants))


def test_what_leaves_for_a_hold_is_owed_again() -> None:
    assert _noted(runners=[runner(drain=LEAVES, status=UP)], pods=[pod()]) == NOTE


def test_what_is_owed_stays_owed_once_its_runner_is_gone_and_after_the_hold() -> None:
    assert _noted(NOTE) == NOTE
    assert _noted(NOTE, is_over=True) == NOTE


def test_a_runner_that_is_up_and_stays_pays_the_debt() -> None:
    assert _noted(NOTE, runners=[runner(status=UP)], pods=[pod()]) is None


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param({"suspended": True}, id="suspended meanwhile"),
        pytest.param({"not_before": NOW}, id="unloaded by hand meanwhile"),
        pytest.param({"restarts": Restarts(count=1, terminal=True)}, id="failed for good"),
    ],
)
def test_nothing_is_owed_to_who_is_not_to_be_loaded(seen: dict[str, Any]) -> None:
    assert _noted(NOTE, seen=seen) is None


def test_who_is_wanted_and_kept_out_names_the_hold_and_is_owed_nothing() -> None:
    assert _noted(refusal=REFUSED) == NOTE.model_copy(update={"owed": None})
    assert _noted() is None


def test_the_planner_hears_of_a_debt_while_the_hold_lasts_and_after_it() -> None:
    grants = grant_holds([_hold(nodes=["a"])], store(nodes=[node()]).nodes)
    seen = Seen(key="ns/m", uid="u")
    during, after = with_hold(seen, NOTE, grants), with_hold(seen, NOTE, {})
    assert (during.away_for, during.returns) == ("h", False)
    assert (after.away_for, after.returns) == ("", True)
    assert with_hold(seen, NOTE.model_copy(update={"owed": None}), {}) == seen
    assert with_hold(seen, None, grants) == seen


def test_a_hold_lists_what_is_owed_on_its_account() -> None:
    found = [Model.model_validate(model(name)) for name in ("b", "a", "c")]
    for one in found[:2]:
        one.status.hold = NOTE
    assert owed_models(found, "h") == ("ns/a", "ns/b")
