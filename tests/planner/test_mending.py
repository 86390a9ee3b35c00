"""What of a reservation whose room is not there: its plan was applied in part, or others took it?"""

import pytest

from berth.planner.actions import Drain, Stop
from berth.planner.plan import make_plan
from berth.planner.state import Runner, Stage, State
from builders import NOW, cluster, device, draining, model, node, policy, runner, waiting

RESERVED = runner("a", 20, stage=Stage.RESERVED)
YOUNGER = runner("c", 20, stage=Stage.RESERVED, reserved_at=NOW - 1)


def mended(state: State) -> list[tuple[str, str, str]]:
    return [
        (type(action).__name__, action.runner, action.reason.value)
        for action in make_plan(state).actions
        if isinstance(action, (Drain, Stop))
    ]


def with_idle(*more: Runner) -> State:
    return cluster(node(), waiting("a", 20), RESERVED, model("b", 20), runner("b", 20), *more)


CASES = [
    pytest.param(with_idle(), [("Drain", "r-b", "MakeRoom")], id="its victim was never asked: asked now"),
    pytest.param(
        cluster(node(), waiting("a", 20), RESERVED, model("b", 20), draining(runner("b", 20), newcomer="ns/a")),
        [], id="its victim drains: nothing to mend"),
    pytest.param(
        cluster(node(), waiting("a", 20), RESERVED, model("b", 20), runner("b", 20, busy=1)),
        [("Stop", "r-a", "RunnersBusy")], id="nobody may give way: the place is given up"),
    pytest.param(
        cluster(node(), waiting("a", 20), runner("a", 20, stage=Stage.RESERVED, admitted_until=NOW + 9, reserved_at=NOW),
                model("b", 20), runner("b", 20, busy=1), recently_freed={"gpu-1/GPU-gpu-1-0": NOW}),
        [], id="an admitted one is on its way"),
    pytest.param(
        cluster(node(), waiting("a", 20), RESERVED, waiting("c", 20), YOUNGER),
        [("Stop", "r-c", "RunnersBusy")], id="of two that were promised the same bytes the younger gives way"),
    pytest.param(
        cluster(node(devices=(device(used=10.0),)), waiting("a", 20), RESERVED),
        [("Stop", "r-a", "RunnersBusy")], id="strangers took the memory"),
    pytest.param(
        cluster(node(devices=(device(used=20.0),)), waiting("a", 20), RESERVED, waiting("b", 4), runner("b", 4, stage=Stage.STARTING)),
        [], id="a load that cannot be measured yet only looks like a shortage"),
    pytest.param(
        cluster(node(policy=policy(max_runners=1)), waiting("a", 4), runner("a", 4, stage=Stage.RESERVED), model("b", 4), runner("b", 4)),
        [("Drain", "r-b", "MakeRoom")], id="over the cap: the least recently used makes room"),
    pytest.param(
        cluster(node(policy=policy(max_runners=1)), waiting("a", 4), runner("a", 4, stage=Stage.RESERVED), model("b", 4), runner("b", 4, busy=1)),
        [("Stop", "r-a", "RunnersBusy")], id="over the cap and nobody idle: the place is given up"),
]  # fmt: skip


@pytest.mark.parametrize(("state", "want"), CASES)
def test_a_reservation_without_room_is_mended(
    state: State, want: list[tuple[str, str, str]]
) -> None:
    assert mended(state) == want
