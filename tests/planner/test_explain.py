"""What would happen if? And: does a written snapshot give the same plan?"""

import json

import pytest
from hypothesis import given, settings

from berth.planner.actions import Drain, Refuse, Reserve
from berth.planner.explain import plan_if_asked, plan_with
from berth.planner.plan import make_plan
from berth.planner.snapshot import dump, load
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
    assert load(json.loads(json.dumps(dump(state)))) == state


@settings(max_examples=100, deadline=None)
@given(states())
def test_a_written_snapshot_gives_the_same_plan(drawn: tuple[State, str]) -> None:
    state, _ = drawn
    again = load(json.loads(json.dumps(dump(state))))
    assert again == state
    assert make_plan(again) == make_plan(state)


def test_fields_of_a_newer_berth_are_ignored() -> None:
    text = dump(cluster(node(), waiting()))
    text["novelty"] = 1
    text["nodes"][0]["novelty"] = {"x": []}
    assert load(text) == cluster(node(), waiting())
