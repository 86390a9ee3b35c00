"""What happens on a place that holds more than it has?"""

from dataclasses import replace

from berth.planner.actions import Drain
from berth.planner.plan import make_plan
from berth.planner.state import Runner, State
from berth.reasons import Reason
from builders import NOW, cluster, device, gib, model, node, runner


def shrunk(*runners: Runner, **more: object) -> State:
    """Two runners of 10 GiB on a device that has shrunk to 18.75 GiB for runners."""
    small = node(devices=(device(0, 20.0),))
    models = (model("a", 10, used=NOW - 300), model("b", 10, used=NOW - 200))
    return cluster(small, *models, *runners, **more)


def drains(state: State) -> list[tuple[str, Reason]]:
    return [(a.runner, a.reason) for a in make_plan(state).actions if isinstance(a, Drain)]


def test_one_idle_runner_at_a_time_leaves_a_place_that_is_over() -> None:
    assert drains(shrunk(runner("a"), runner("b"))) == [("r-a", Reason.MEMORY)]


def test_it_is_said_with_its_numbers() -> None:
    told = make_plan(shrunk(runner("a", busy=1), runner("b", busy=1))).verdicts[0].message
    assert told == (
        "model a is up on gpu-1 cuda:0; "
        "gpu-1 cuda:0 is over-committed: runners hold 20 GiB of 18.8 GiB"
    )


def test_nobody_in_use_is_stopped_for_it() -> None:
    assert drains(shrunk(runner("a", busy=1), runner("b", busy=1))) == []


def test_while_one_leaves_no_other_is_asked() -> None:
    first = make_plan(shrunk(runner("a"), runner("b"))).actions[0]
    assert isinstance(first, Drain)
    from berth.planner.state import Drain as Order

    leaving = replace(runner("a"), drain=Order(first.reason, NOW, first.deadline_s))
    assert drains(shrunk(leaving, runner("b"))) == []


def test_runners_that_outgrew_their_claims_count_as_measured() -> None:
    grown = runner("a", measured=(("GPU-gpu-1-0", gib(16)),))
    state = cluster(node(), model("a", 10, used=NOW - 300), model("b", 10), grown, runner("b"))
    assert len(drains(state)) == 1


def test_what_strangers_hold_is_no_overcommitment() -> None:
    state = cluster(node(devices=(device(used=24.0),)), model("a"), runner("a"))
    assert drains(state) == []
