"""A plan that met a bug leaves its snapshot, once."""

from pathlib import Path

from berth.controller.dump import BugKeeper
from berth.planner.actions import Plan, Verdict
from berth.planner.snapshot import state_from_json
from berth.planner.state import Model, Node, Policy, State
from berth.reasons import Reason
from berth.reasons import State as ModelState
from berth.units import Bytes

STATE = State(
    now=1000.0,
    epoch=3,
    nodes=(
        Node("a", Bytes(5), Bytes(4), labels={"k": "v"}, policy=Policy(models=frozenset("ba"))),
    ),
    models=(Model("ns/m", "u", blocked=Reason.READING_HEADER),),
)
BUG = Plan(verdicts=(Verdict("ns/m", ModelState.FAILED, Reason.INTERNAL_ERROR, "KeyError: x"),))


def test_the_snapshot_of_a_bug_is_written_once(tmp_path: Path) -> None:
    keeper = BugKeeper(tmp_path)
    path = keeper.look(STATE, BUG)
    assert path is not None
    assert state_from_json(path.read_text()) == STATE
    assert keeper.look(STATE, BUG) is None
    assert keeper.look(STATE, Plan()) is None


def test_a_folder_that_cannot_be_written_to_costs_no_pass(tmp_path: Path) -> None:
    assert BugKeeper(tmp_path / "none").look(STATE, BUG) is None
