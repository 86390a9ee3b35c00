"""With which settings does the next runner start? Tables of one decision, then whole switches."""

from dataclasses import replace

import pytest

from berth.planner.actions import Plan, Stop
from berth.planner.rollout import Asked, Change, Phase, after_plan, plan_rollout
from berth.planner.state import Model, Node, Restarts, Runner, Stage
from berth.reasons import Reason
from builders import NOW, draining, model, node, runner
from planner.promises import check_promises
from planner.world import World

OLD, NEW = "h1", "h2"
GOOD = Change(good=OLD)
TRIED = replace(GOOD, trial=NEW)
STARTED = replace(TRIED, started=True)
FAILED = replace(STARTED, failed=Reason.CRASHED, message="it crashed", failed_at=NOW - 5)


def old(stage: Stage = Stage.UP, **more: object) -> Runner:
    return runner("a", 10, uid="old", hash=OLD, stage=stage, **more)  # type: ignore[arg-type]


def new(stage: Stage, **more: object) -> Runner:
    return runner("a", 10, uid="new", hash=NEW, stage=stage, **more)  # type: ignore[arg-type]


def chosen(
    before: Change, *runners: Runner, asked: str = NEW, now: float = NOW, **more: object
) -> tuple[Phase, str]:
    found = plan_rollout(before, Asked(asked, **more), runners, now)  # type: ignore[arg-type]
    return found.phase, found.settings


REPLACED = draining(old(), Reason.REPLACED)
CRASHED_NEW = new(Stage.FAILED, exit_reason=Reason.SMOKE_FAILED, exit_message="no word")
NO_ROOM = new(Stage.FAILED, exit_reason=Reason.NO_MEMORY)


@pytest.mark.parametrize(
    ("before", "runners", "want"),
    [
        pytest.param(Change(), (), (Phase.FIRST, NEW), id="nothing was ever good"),
        pytest.param(GOOD, (old(),), (Phase.PENDING, NEW), id="new settings are to be tried"),
        pytest.param(
            GOOD, (old(), new(Stage.RESERVED)), (Phase.TRIAL, NEW), id="a trial begins"
        ),
        pytest.param(
            STARTED, (new(Stage.STARTING),), (Phase.TRIAL, NEW), id="a trial goes on after a restart"
        ),
        pytest.param(STARTED, (new(Stage.UP),), (Phase.STEADY, NEW), id="up makes it good"),
        pytest.param(
            STARTED, (old(), CRASHED_NEW), (Phase.BACK, OLD), id="it failed beside the old runner"
        ),
        pytest.param(STARTED, (CRASHED_NEW,), (Phase.BACK, OLD), id="it failed with the old gone"),
        pytest.param(
            STARTED, (new(Stage.LOST),), (Phase.BACK, OLD), id="its node was lost: never on trial again"
        ),
        pytest.param(STARTED, (), (Phase.BACK, OLD), id="it vanished without a word"),
        pytest.param(
            TRIED, (), (Phase.BACK, OLD), id="its reservation is gone, and so is the old runner"
        ),
        pytest.param(
            TRIED, (old(),), (Phase.PENDING, NEW), id="its reservation is gone and touched nobody"
        ),
        pytest.param(
            STARTED, (old(), NO_ROOM), (Phase.PENDING, NEW), id="its place was at fault: elsewhere"
        ),
        pytest.param(STARTED, (NO_ROOM,), (Phase.BACK, OLD), id="its place, with the old gone"),
        pytest.param(FAILED, (old(),), (Phase.BACK, OLD), id="a failed trial is not repeated"),
        pytest.param(FAILED, (), (Phase.BACK, OLD), id="not even when nothing runs"),
        pytest.param(
            replace(FAILED, trial="h0"), (old(),), (Phase.PENDING, NEW), id="another change is tried"
        ),
        pytest.param(
            GOOD, (old(Stage.FAILED),), (Phase.BACK, OLD), id="a crash brings back what was good"
        ),
        pytest.param(
            GOOD, (old(Stage.LOST),), (Phase.BACK, OLD), id="so does a node that is lost"
        ),
        pytest.param(
            replace(GOOD, fell=True), (), (Phase.BACK, OLD), id="also once the dead runner is gone"
        ),
        pytest.param(
            replace(GOOD, fell=True), (old(),), (Phase.PENDING, NEW), id="and then it is tried"
        ),
        pytest.param(
            GOOD, (old(Stage.FAILED), new(Stage.STARTING)), (Phase.TRIAL, NEW),
            id="a trial that already starts goes on when the old one crashes",
        ),
    ],
)  # fmt: skip
def test_which_settings_the_next_runner_gets(
    before: Change, runners: tuple[Runner, ...], want: tuple[Phase, str]
) -> None:
    assert chosen(before, *runners) == want


@pytest.mark.parametrize(
    ("reason", "want"),
    [
        pytest.param(Reason.CONTEXT_TOO_LONG, (Phase.BACK, OLD), id="refused before the load"),
        pytest.param(Reason.PROFILE_NOT_FOUND, (Phase.BACK, OLD), id="its profile was deleted"),
        pytest.param(Reason.READING_HEADER, (Phase.PENDING, ""), id="known in a moment"),
        pytest.param(Reason.SOURCE_FORBIDDEN, (Phase.PENDING, ""), id="no right to the files"),
    ],
)
def test_settings_that_cannot_be_started(reason: Reason, want: tuple[Phase, str]) -> None:
    assert chosen(GOOD, asked="", blocked=reason) == want


def test_what_keeps_failing_gives_way_to_what_is_asked_for() -> None:
    """A repaired profile must not wait for one that cannot come up any more."""
    fell = replace(GOOD, fell=True)
    assert chosen(fell, old(Stage.FAILED), restarts=Restarts(count=2)) == (Phase.PENDING, NEW)
    terminal = Restarts(count=1, terminal=True)
    assert chosen(fell, old(Stage.FAILED), restarts=terminal) == (Phase.PENDING, NEW)


def test_a_failed_fetch_is_tried_again_after_ten_minutes_and_a_failed_start_is_not() -> None:
    fetch = replace(TRIED, failed=Reason.SOURCE_UNREACHABLE, failed_at=NOW)
    assert chosen(fetch, old(), now=NOW + 599) == (Phase.BACK, OLD)
    assert chosen(fetch, old(), now=NOW + 600) == (Phase.PENDING, NEW)
    assert chosen(replace(fetch, started=True), old(), now=NOW + 6000) == (Phase.BACK, OLD)


def test_a_runner_is_owed_from_its_drain_until_one_is_up() -> None:
    def owed(before: Change, *runners: Runner) -> bool:
        return plan_rollout(before, Asked(NEW), runners, NOW).change.owed

    assert owed(GOOD, REPLACED, new(Stage.RESERVED))
    assert owed(replace(TRIED, owed=True), new(Stage.STARTING))
    assert owed(replace(STARTED, owed=True), CRASHED_NEW)
    assert not owed(replace(STARTED, owed=True), new(Stage.UP))
    assert not owed(replace(STARTED, owed=True), old())


@pytest.mark.parametrize(
    ("before", "reason", "beside", "want"),
    [
        pytest.param(STARTED, Reason.SUSPENDED, (), GOOD, id="suspended: no verdict"),
        pytest.param(STARTED, Reason.REPLACED, (), GOOD, id="changed again: no verdict"),
        pytest.param(
            STARTED, Reason.LOAD_TIMEOUT, (),
            replace(STARTED, failed=Reason.LOAD_TIMEOUT, failed_at=NOW), id="too slow: failed",
        ),
        pytest.param(TRIED, Reason.NO_AGENT, (old(),), TRIED, id="given up, nobody touched"),
        pytest.param(
            TRIED, Reason.NO_AGENT, (),
            replace(TRIED, failed=Reason.NO_AGENT, failed_at=NOW), id="given up, the old one gone",
        ),
    ],
)  # fmt: skip
def test_a_trials_end_is_judged_by_who_ended_it(
    before: Change, reason: Reason, beside: tuple[Runner, ...], want: Change
) -> None:
    plan = Plan((Stop("new", reason),))
    assert after_plan(before, plan, (new(Stage.RESERVED), *beside), NOW) == want


# Whole switches in the model of the world.


def world(*parts: Node | Model, **more: object) -> World:
    nodes = {part.name: part for part in parts if isinstance(part, Node)}
    models = {part.key: part for part in parts if isinstance(part, Model)}
    return World(nodes, models, promises=(check_promises,), **more)  # type: ignore[arg-type]


def serving(story: World) -> list[str]:
    return [t.seen.settings_hash for t in story.runners.values() if t.seen.stage is Stage.UP]


@pytest.mark.parametrize("size", [10, 20], ids=["room for both", "room for one"])
def test_a_switch_that_fails_ends_with_the_old_settings_serving(size: float) -> None:
    story = world(node(), model("a", size), bad={"h2"})
    story.request("ns/a", 1)
    story.run(30)
    story.change("ns/a", settings_hash="h2")
    story.run(120)
    assert serving(story) == ["h1"]
    # One load at first, one trial, and the old settings again where they had to give way.
    assert story.loads == (2 if size == 10 else 3)
    story.request("ns/a", 1)
    story.run(600)
    assert (story.served, story.cut) == ({"ns/a": 2}, 0)
    assert story.loads == (2 if size == 10 else 3)


def test_twenty_models_of_one_profile_change_one_after_the_other() -> None:
    names = [f"m{index:02d}" for index in range(20)]
    fleet = [node(f"gpu-{index}") for index in range(10)]
    story = world(
        *fleet, *(model(name, 12, profile="ns/p", min_replicas=1) for name in names), load_s=5.0
    )
    story.run(300)
    assert serving(story) == ["h1"] * 20
    for name in names:
        story.models[f"ns/{name}"] = replace(story.models[f"ns/{name}"], settings_hash="h2")
    least = 20
    for _ in range(4000):
        story.run(0.25)
        least = min(least, len(serving(story)))
        if serving(story) == ["h2"] * 20:
            break
    assert serving(story) == ["h2"] * 20
    assert (least, story.loads, story.cut) == (19, 40, 0)


def test_the_controller_dies_at_each_step_of_a_switch_and_it_ends_all_the_same() -> None:
    for bad in (set(), {"h2"}):
        for step in range(30):
            story = world(node(), model("a", 20, min_replicas=1), bad=bad)
            story.run(30)
            story.models["ns/a"] = replace(story.models["ns/a"], settings_hash="h2")
            story.run(0.4 * step)
            story.interrupted_after = step % 3
            story.run(200)
            assert serving(story) == (["h1"] if bad else ["h2"]), (bad, step)


def test_the_node_dies_at_each_step_of_a_switch_and_a_profile_serves_in_the_end() -> None:
    for bad in (set(), {"h2"}):
        for step in range(30):
            story = world(node(), node("gpu-2"), model("a", 20, min_replicas=1), bad=bad)
            story.run(30)
            story.models["ns/a"] = replace(story.models["ns/a"], settings_hash="h2")
            story.run(0.4 * step)
            story.change_node("gpu-1", ready=False, not_ready_since=story.now)
            story.run(400)
            assert serving(story) in ([["h1"]] if bad else [["h1"], ["h2"]]), (bad, step)


@pytest.mark.parametrize("after", [0.1, 1.0, 3.0, 5.0, 8.0], ids=lambda s: f"{s} s later")
def test_h12_settings_changed_and_changed_back_end_as_they_were(after: float) -> None:
    story = world(node(), model("a", 20, min_replicas=1))
    story.run(30)
    story.change("ns/a", settings_hash="h2")
    story.run(after)
    story.change("ns/a", settings_hash="h1")
    story.run(120)
    assert serving(story) == ["h1"]
    assert story.cut == 0
