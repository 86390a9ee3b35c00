"""What would happen if? And: does a written snapshot give the same plan?"""

import pytest
from hypothesis import given, settings

from berth.planner.actions import Drain, Refuse, Reserve
from berth.planner.explain import plan_if_asked, plan_with
from berth.planner.plan import make_plan
from berth.planner.snapshot import dump, load, state_from_json, state_to_json
from berth.planner.state import Stage, State, Taint, Toleration
from berth.reasons import Reason
from builders import (
    NOW,
    cluster,
    draining,
    failed,
    gib,
    model,
    node,
    policy,
    runner,
    waiting,
)
from planner.test_search import states


def test_asking_shows_the_plan_and_touches_nothing() -> None:
    state = cluster(node(), model("a", 20), model("b", 20), runner("b", 20))
    plan = plan_if_asked(state, "ns/a")
    assert [type(a) for a in plan.actions] == [Reserve, Drain]
    assert state.models[0].waiting == 0


def test_several_can_be_asked_for_at_once() -> None:
    plan = plan_if_asked(cluster(node(), model("a", 14), model("b", 14)), "ns/a", "ns/b")
    assert [(type(a), a.model) for a in plan.actions if isinstance(a, (Reserve, Refuse))] == [
        (Reserve, "ns/a"),
        (Refuse, "ns/b"),
    ]


def test_asking_for_an_unknown_model_says_which() -> None:
    with pytest.raises(KeyError, match="ns/x"):
        plan_if_asked(cluster(node()), "ns/x")


def test_a_model_that_is_not_declared_yet_can_be_tried() -> None:
    plan = plan_with(cluster(node()), waiting("new", 90))
    assert [a.reason for a in plan.actions if isinstance(a, Refuse)] == [Reason.NEVER_FITS]


def test_a_snapshot_survives_being_written_down() -> None:
    state = cluster(
        node(labels={"a": "b"}, taints=(Taint("t"),), files=["x"], policy=policy(models=frozenset({"m"}))),
        waiting(
            tolerations=(Toleration("t", "Exists"),), local_nodes=frozenset({"gpu-1"}),
            restarts=failed(Reason.OOM_KILLED, excluded=(("gpu-1", NOW + 5),)), files=(("x", gib(1)),),
        ),
        draining(runner("b", measured=(("host", gib(2)),))),
        runner("c", stage=Stage.FAILED, exit_reason=Reason.CRASHED),
        recently_freed={"gpu-1/host": NOW},
    )  # fmt: skip
    assert state_from_json(state_to_json(state)) == state


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("now: 1", "it is not JSON", id="YAML"),
        pytest.param("[]", "it is no snapshot", id="a list"),
        pytest.param('{"kind": "List"}', "`now` and `epoch` are missing", id="another document"),
        pytest.param('{"now": 1, "epoch": "x"}', "'x' is not of type int", id="text for a number"),
        pytest.param('{"now": 1, "epoch": 1, "nodes": [{}]}', "name", id="a field is missing"),
        pytest.param(
            '{"now": 1, "epoch": 1, "runners": [{"stage": "Flying"}]}', "Flying", id="no such stage"
        ),
    ],
)
def test_what_is_no_snapshot_says_so(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        state_from_json(text)


@settings(max_examples=100)
@given(states())
def test_a_written_snapshot_gives_the_same_plan(drawn: tuple[State, str]) -> None:
    state, _ = drawn
    again = state_from_json(state_to_json(state))
    assert again == state
    assert make_plan(again) == make_plan(state)


def test_fields_of_a_newer_berth_are_ignored() -> None:
    text = dump(cluster(node(), waiting()))
    text["novelty"] = 1
    text["nodes"][0]["novelty"] = {"x": []}
    assert load(text) == cluster(node(), waiting())
