"""What becomes of a runner that exists: stopped, drained, spared, started, or left alone?"""

import pytest

from berth.planner.actions import Drain, Reserve, Spare, StartPod, Stop
from berth.planner.plan import make_plan
from berth.planner.state import Stage, State, Taint, Toleration
from berth.reasons import Reason
from builders import NOW, cluster, draining, failed, gib, model, node, policy, runner, waiting


def decided(state: State) -> list[tuple[str, str, str]]:
    """What was decided on runners that exist: kind, runner, reason."""
    found = []
    for action in make_plan(state).actions:
        if isinstance(action, (Drain, Stop)):
            found.append((type(action).__name__, action.runner, action.reason.value))
        elif isinstance(action, (Spare, StartPod)):
            found.append((type(action).__name__, action.runner, ""))
    return found


def idle(name: str = "a", *, last: float, **more: object) -> object:
    return model(name, used=NOW - last, idle_timeout_s=600, **more)


RESERVED = runner(stage=Stage.RESERVED, reserved_at=NOW - 5, admitted_until=NOW + 30)
STUCK = runner(stage=Stage.RESERVED, reserved_at=NOW - 61, admission_refused=Reason.NO_MEMORY)

CASES = [
    # Idle unload.
    pytest.param(cluster(node(), idle(last=601), runner()), [("Drain", "r-a", "Idle")], id="unused for the idle timeout: unloaded (L2)"),
    pytest.param(cluster(node(), idle(last=599), runner()), [], id="used within the idle timeout: stays"),
    pytest.param(cluster(node(), idle(last=9000), runner(up_since=NOW - 30)), [], id="idle counts from when it came up (C25)"),
    pytest.param(cluster(node(), idle(last=9000), runner(busy=1)), [], id="busy is not idle however old its last use"),
    pytest.param(cluster(node(), model(used=0, idle_timeout_s=0), runner()), [], id="idle timeout 0 means never"),
    pytest.param(cluster(node(), idle(last=9000, pinned=True), runner()), [], id="pinned never idles out (C17)"),
    pytest.param(cluster(node(), idle(last=9000, min_replicas=1), runner()), [], id="kept loaded never idles out"),
    pytest.param(
        cluster(node(), idle(last=9000, min_replicas=1, max_replicas=2), runner(), runner(uid="r-2", ordinal=1)),
        [("Drain", "r-2", "Idle")],
        id="copies beyond minReplicas idle out, the highest ordinal first",
    ),
    pytest.param(cluster(node(), idle(last=9000), runner(), healthy_since=NOW - 89), [], id="nothing idles out right after an outage"),
    pytest.param(cluster(node(agent_fresh=False), idle(last=9000), runner()), [], id="nothing idles out while its agent is silent"),
    pytest.param(cluster(node(), idle(last=9000, load_asked=NOW), runner()), [], id="a load by hand of what is up keeps it up"),
    # The end of a drain.
    pytest.param(
        cluster(node(), idle(last=601), draining(runner(quiet_since=NOW - 2), Reason.IDLE)),
        [("Stop", "r-a", "Idle")], id="quiet for two seconds: stopped"),
    pytest.param(
        cluster(node(), idle(last=601), draining(runner(quiet_since=NOW - 1.9), Reason.IDLE)),
        [], id="quiet for less: waited for"),
    pytest.param(
        cluster(node(), waiting(), draining(runner(quiet_since=NOW - 9), Reason.IDLE)),
        [("Spare", "r-a", "")], id="a request comes before the idle one has stopped: spared (L8)"),
    pytest.param(
        cluster(node(), idle(last=0.5), draining(runner(), Reason.IDLE)),
        [("Spare", "r-a", "")], id="used since the drain began: spared"),
    pytest.param(
        cluster(node(), draining(runner(busy=1), Reason.DELETED, deadline=NOW + 9)),
        [], id="a deleted Model's answers may end within the deadline"),
    pytest.param(
        cluster(node(), draining(runner(busy=1), Reason.DELETED, deadline=NOW)),
        [("Stop", "r-a", "Deleted")], id="and no longer"),
    pytest.param(
        cluster(node(), model("a"), draining(runner(busy=1), newcomer="ns/b", since=NOW - 9, deadline=NOW - 1),
                waiting("b", 20, since=NOW - 99), runner("b", 20, stage=Stage.RESERVED)),
        [], id="an answer in hand is never cut to make room"),
    # Victims that are spared.
    pytest.param(
        cluster(node(), model("a"), draining(runner(), newcomer="ns/b"), model("b", 20)),
        [("Spare", "r-a", "")], id="the newcomer is gone: its victim is spared"),
    pytest.param(
        cluster(node(), model("a"), draining(runner(), newcomer="ns/b"),
                model("b", 20), runner("b", 20, stage=Stage.RESERVED)),
        [("Stop", "r-b", "Idle"), ("Spare", "r-a", "")],
        id="nobody waits for the newcomer any more: it goes, its victim stays"),
    pytest.param(
        cluster(node(), waiting("a", since=NOW - 9), draining(runner(), newcomer="ns/b"),
                waiting("b", 20, since=NOW - 5), runner("b", 20, stage=Stage.RESERVED)),
        [("Stop", "r-b", "RunnersBusy"), ("Spare", "r-a", "")],
        id="the victim's requests waited first: it is spared"),
    pytest.param(
        cluster(node(), waiting("a", since=NOW - 9), draining(runner(), newcomer="ns/b"),
                waiting("b", 20, since=NOW - 5), runner("b", 20, stage=Stage.RESERVED, admitted_until=NOW + 9)),
        [("StartPod", "r-b", "")], id="an admitted newcomer is on its way: its victim goes"),
    pytest.param(
        cluster(node(), waiting("a", since=NOW - 1), draining(runner(), newcomer="ns/b"),
                waiting("b", 20, since=NOW - 5), runner("b", 20, stage=Stage.RESERVED)),
        [], id="requests that came later wait for their turn (C1)"),
    pytest.param(
        cluster(node(), model("a"), draining(runner(busy=1), newcomer="ns/b", since=NOW - 30),
                waiting("b", 20, since=NOW - 35), runner("b", 20, stage=Stage.RESERVED)),
        [("Stop", "r-b", "RunnersBusy"), ("Spare", "r-a", "")],
        id="busy beyond its grace: it was not idle after all, and is spared"),
    pytest.param(
        cluster(node(), model("a"), draining(runner(busy=1), newcomer="ns/b", since=NOW - 30),
                waiting("b", 20, since=NOW - 61), runner("b", 20, stage=Stage.RESERVED)),
        [], id="not against who waited beyond the fairness window (L9)"),
    pytest.param(
        cluster(node(), model("a"), draining(runner(quiet_since=NOW - 3), newcomer="ns/b"),
                waiting("b", 20), runner("b", 20, stage=Stage.RESERVED)),
        [("Stop", "r-a", "MakeRoom")], id="a quiet victim is stopped"),
    # Who has to go.
    pytest.param(cluster(node(), runner()), [("Drain", "r-a", "Deleted")], id="the Model is deleted: drained"),
    pytest.param(cluster(node(), runner(stage=Stage.STARTING)), [("Stop", "r-a", "Deleted")], id="deleted while loading: stopped at once"),
    pytest.param(cluster(node(), model(suspended=True), runner()), [("Drain", "r-a", "Suspended")], id="suspended: drained"),
    pytest.param(
        cluster(node(), model(), draining(runner(), Reason.SUSPENDED)),
        [("Spare", "r-a", "")], id="no longer suspended: spared"),
    pytest.param(cluster(node(), model(unload_asked=NOW), runner()), [("Drain", "r-a", "UnloadedByHand")], id="unloaded by hand: drained (L4)"),
    pytest.param(
        cluster(node(), waiting(since=NOW - 5, unload_asked=NOW - 9), runner()),
        [], id="asked for again after the unload: stays"),
    pytest.param(
        cluster(node(), model(not_before=NOW - 99), runner(created=NOW - 50)),
        [], id="loaded again after the unload: stays although nobody waits now"),
    pytest.param(cluster(node(schedulable=False), model(), runner()), [("Drain", "r-a", "NodeDrained")], id="its node is cordoned: drained"),
    pytest.param(
        cluster(node(taints=(Taint("repair", effect="NoExecute"),)), model(), runner()),
        [("Drain", "r-a", "NodeDrained")], id="a NoExecute taint: drained"),
    pytest.param(
        cluster(node(taints=(Taint("repair", effect="NoExecute"),)), model(tolerations=(Toleration("repair", "Exists"),)), runner()),
        [], id="a tolerated NoExecute taint: stays"),
    pytest.param(cluster(node(), model(), draining(runner(), reason=Reason.HELD)), [("Spare", "r-a", "")], id="the hold is over before it was quiet: spared"),
    pytest.param(cluster(node(held_by="x"), model(), runner(stage=Stage.STARTING)), [("Stop", "r-a", "Held")], id="what loads on a node that is taken is stopped"),
    pytest.param(cluster(node(held_by="training"), model(), runner()), [("Drain", "r-a", "Held")], id="its node is held: drained"),
    pytest.param(
        cluster(node(held_by="x"), model(), draining(runner(), newcomer="ns/b"), waiting("b", 20), runner("b", 20, stage=Stage.STARTING)),
        [("Stop", "r-b", "Held"), ("Drain", "r-a", "Held")], id="a drain that may cut answers replaces one that may not"),
    # Ends.
    pytest.param(cluster(node(), model(), runner(stage=Stage.FAILED, exit_reason=Reason.OOM_KILLED)), [("Stop", "r-a", "OOMKilled")], id="a runner that ended is cleared away"),
    pytest.param(cluster(model(), runner()), [("Stop", "r-a", "NodeLost")], id="its node is gone: given up"),
    pytest.param(
        cluster(node(ready=False, not_ready_since=NOW - 60), model(), runner()),
        [("Stop", "r-a", "NodeLost")], id="its node was not ready for a minute: given up"),
    pytest.param(cluster(node(), model(), runner(kill=True)), [("Stop", "r-a", "KilledByHand")], id="killed by hand (C4)"),
    pytest.param(cluster(node(), model(), runner(stage=Stage.STOPPING)), [], id="what is stopping is left alone"),
    pytest.param(
        cluster(node(), model(), runner(stage=Stage.STOPPING, foreign_deletion=True)),
        [("Stop", "r-a", "Evicted")], id="its pod is deleted by somebody else: the Runner goes with it"),
    pytest.param(
        cluster(node(), waiting(), runner(stage=Stage.STARTING, load_deadline=NOW)),
        [("Stop", "r-a", "LoadTimeout")], id="a load past its deadline is stopped"),
    # Reservations.
    pytest.param(cluster(node(), waiting(), RESERVED), [("StartPod", "r-a", "")], id="admitted: started"),
    pytest.param(
        cluster(node(), waiting(), runner(stage=Stage.RESERVED, admitted_until=NOW)),
        [], id="an admission that ran out starts nothing"),
    pytest.param(
        cluster(node(), waiting(), RESERVED, runner(uid="r-0", stage=Stage.STOPPING)),
        [], id="the model's old pod goes first (C15)"),
    pytest.param(
        cluster(node(), waiting(), RESERVED, recently_freed={"gpu-1/GPU-gpu-1-0": NOW - 1}),
        [], id="the place settles first"),
    pytest.param(
        cluster(node(), waiting(), RESERVED, waiting("b", 4), runner("b", 4, stage=Stage.STARTING)),
        [], id="one load at a time on a device (M8)"),
    pytest.param(
        cluster(node(policy=policy(max_runners=1)), waiting("a"), RESERVED, model("b"), runner("b", 4, stage=Stage.STOPPING)),
        [], id="the cap counts pods until they are gone"),
    pytest.param(cluster(node(), waiting(), STUCK), [("Stop", "r-a", "NoMemory")], id="refused for a minute with nothing on its way: the place is given up"),
    pytest.param(
        cluster(node(), waiting(), STUCK, runner("b", 4, stage=Stage.STOPPING)),
        [], id="room is on its way: waited for"),
    # Sets of runners.
    pytest.param(
        cluster(node(gpus=2), model(max_replicas=1), runner(busy=1), runner(uid="r-2", at=1)),
        [("Drain", "r-2", "ScaledDown")], id="of copies too many the idle one goes"),
    pytest.param(
        cluster(node(gpus=2), model(max_replicas=1), runner(), runner(uid="r-2", at=1, stage=Stage.STARTING)),
        [("Stop", "r-2", "ScaledDown")], id="of copies too many the loading one goes"),
    pytest.param(
        cluster(node(gpus=2), model(hash="h2"), runner(), runner(uid="r-2", at=1, attempt=1, hash="h2")),
        [("Drain", "r-a", "Replaced")], id="the new settings are up: the old ones drain"),
    pytest.param(
        cluster(node(gpus=2), model(hash="h2"), runner(), runner(uid="r-2", at=1, hash="h2", stage=Stage.STARTING)),
        [], id="the new settings load: the old ones serve"),
    pytest.param(
        cluster(node(), model(hash="h2"), runner(stage=Stage.STARTING)),
        [("Stop", "r-a", "Replaced")], id="old settings that still load are stopped at once"),
    pytest.param(
        cluster(node(), model(), draining(runner(), Reason.REPLACED, newcomer="ns/a")),
        [("Spare", "r-a", "")], id="the settings are taken back: spared"),
    pytest.param(
        cluster(node(), model(hash="h2", restarts=failed(Reason.CRASHED)), draining(runner(), Reason.REPLACED, newcomer="ns/a")),
        [("Spare", "r-a", "")], id="the successor failed: the old runner goes on (F2)"),
]  # fmt: skip


@pytest.mark.parametrize(("state", "want"), CASES)
def test_a_runner_meets_its_rule(state: State, want: list[tuple[str, str, str]]) -> None:
    assert decided(state) == want


def test_new_settings_on_a_full_device_reserve_first_and_drain_the_old() -> None:
    plan = make_plan(cluster(node(), model("a", 20, hash="h2"), runner("a", 20)))
    reserve, drain = plan.actions
    assert isinstance(reserve, Reserve)
    assert (reserve.ordinal, reserve.attempt) == (0, 1)
    assert drain == Drain("r-a", Reason.REPLACED, NOW + 300, newcomer="ns/a")


def test_new_settings_wait_for_their_files_before_the_old_runner_is_touched() -> None:
    files = (("sha-new", gib(3)),)
    plan = make_plan(cluster(node(), model("a", 20, hash="h2", files=files), runner("a", 20)))
    assert [type(a).__name__ for a in plan.actions] == ["Prepare"]


def test_new_settings_that_fit_nowhere_leave_the_old_runner_alone() -> None:
    plan = make_plan(cluster(node(), model("a", 90, hash="h2"), runner("a", 20)))
    assert [type(a).__name__ for a in plan.actions] == ["Refuse"]
    assert plan.verdicts[0].state.value == "Up"
    assert "needs 90 GiB" in plan.verdicts[0].message


def test_replacements_go_one_by_one_on_each_node() -> None:
    models = [model(n, 5, hash="h2") for n in "abc"]
    runners = [runner(n, 5, hash="h1") for n in "abc"]
    plan = make_plan(cluster(node(), *models, *runners))
    assert [a.model for a in plan.actions if isinstance(a, Reserve)] == ["ns/a"]


WAKES = [
    pytest.param(cluster(node(), idle(last=100), runner()), NOW + 500, id="when the idle timeout ends"),
    pytest.param(cluster(node(), idle(last=601), draining(runner(quiet_since=NOW - 1), Reason.IDLE)), NOW + 1, id="when it has been quiet for long enough"),
    pytest.param(cluster(node(), draining(runner(busy=1), Reason.DELETED, deadline=NOW + 7)), NOW + 7, id="at the deadline of a drain"),
    pytest.param(cluster(node(), waiting("a", 20, since=NOW - 1), model("b", 20), runner("b", 20, busy=1)), NOW + 59, id="when the fairness window ends"),
    pytest.param(cluster(node(ready=False, not_ready_since=NOW - 20), model(), runner()), NOW + 40, id="when a node that is not ready counts as lost"),
    pytest.param(cluster(node(), idle(last=9000), runner(), healthy_since=NOW - 80), NOW + 10, id="when the watches have been healthy for long enough"),
    pytest.param(cluster(node(), waiting(), runner(stage=Stage.STARTING, load_deadline=NOW + 3)), NOW + 3, id="at the deadline of a load"),
    pytest.param(cluster(node(), model("a")), None, id="never, where nothing depends on time"),
]  # fmt: skip


@pytest.mark.parametrize(("state", "want"), WAKES)
def test_the_plan_says_when_time_alone_changes_it(state: State, want: float | None) -> None:
    assert make_plan(state).wake_at == want


def verdict(state: State) -> tuple[str, str, str]:
    found = make_plan(state).verdicts[0]
    return found.state.value, found.reason.value, found.message


VERDICTS = [
    pytest.param(cluster(node(), model()), ("Down", "Idle", "model a is loaded when asked for"), id="down"),
    pytest.param(cluster(node(), waiting()), ("Waiting", "Reserved", "model a has 10 GiB reserved on gpu-1 cuda:0"), id="reserved by this plan"),
    pytest.param(cluster(node(), waiting(files=(("x", gib(1)),))), ("Fetching", "Preparing", "model a: its files are fetched to gpu-1"), id="fetching"),
    pytest.param(cluster(node(), waiting(), runner(stage=Stage.RESERVED)), ("Waiting", "Reserved", "model a waits for its room on gpu-1 cuda:0"), id="reserved"),
    pytest.param(cluster(node(), waiting(), RESERVED), ("Starting", "Admitted", "model a starts on gpu-1 cuda:0"), id="admitted"),
    pytest.param(cluster(node(), waiting(), runner(stage=Stage.STARTING)), ("Starting", "Starting", "model a starts on gpu-1 cuda:0"), id="starting"),
    pytest.param(cluster(node(), model(), runner()), ("Up", "Up", "model a is up on gpu-1 cuda:0"), id="up"),
    pytest.param(cluster(node(), model(), runner(stage=Stage.STOPPING)), ("Stopping", "Draining", "model a: 1 runner is draining or stopping"), id="stopping"),
    pytest.param(cluster(node(), waiting(), runner(stage=Stage.STOPPING)), ("Stopping", "Draining", "model a: 1 runner is draining or stopping; it is loaded again once that is gone"), id="stopping, and asked for again"),
    pytest.param(cluster(node(held_by="x"), model(away_for="x")), ("Down", "Held", "model a was unloaded for the hold x, and is loaded after it"), id="away for a hold, and nobody asks"),
    pytest.param(cluster(node(held_by="x"), waiting()), ("Held", "Held", "model a needs 10 GiB; gpu-1: held by x"), id="held"),
    pytest.param(cluster(node(), waiting(suspended=True)), ("Down", "Suspended", "model a is suspended"), id="suspended"),
    pytest.param(cluster(node(), model(not_before=NOW)), ("Down", "UnloadedByHand", "model a was unloaded by hand"), id="unloaded by hand"),
    pytest.param(cluster(node(), waiting(blocked=Reason.PROFILE_NOT_FOUND, blocked_message="no profile p")), ("Failed", "ProfileNotFound", "no profile p"), id="blocked by what the user wrote"),
    pytest.param(cluster(node(), waiting(blocked=Reason.READING_HEADER)), ("Waiting", "ReadingHeader", "model a cannot be planned yet: ReadingHeader"), id="blocked for the time being"),
    pytest.param(cluster(node(), model(needs=())), ("Down", "NeedsUnknown", "model a cannot be planned yet: NeedsUnknown"), id="needs unknown: nothing is placed (A21)"),
    pytest.param(
        cluster(node(), waiting(restarts=failed(Reason.CRASHED, count=2, next_retry=NOW + 2))),
        ("Waiting", "CrashLoop", "model a failed 2 times in a row (CrashLoop); next try after 2 s"), id="backing off"),
    pytest.param(
        cluster(node(), waiting(restarts=failed(Reason.CRASHED, count=5, next_retry=NOW + 16, message="exit 1"))),
        ("Failed", "CrashLoop", "model a failed 5 times in a row (CrashLoop): exit 1; next try after 16 s"), id="five failures in a row"),
    pytest.param(
        cluster(node(), waiting(restarts=failed(Reason.LOAD_TIMEOUT, next_retry=NOW + 1))),
        ("Failed", "LoadTimeout", "model a failed once (LoadTimeout); next try after 1 s"), id="a load that ran out of time (C13)"),
    pytest.param(cluster(node(), model(restarts=failed(Reason.BAD_FLAGS, terminal=True, message="unknown flag --x"))), ("Failed", "BadFlags", "unknown flag --x"), id="a terminal failure"),
]  # fmt: skip


@pytest.mark.parametrize(("state", "want"), VERDICTS)
def test_the_verdict_tells_state_reason_and_numbers(
    state: State, want: tuple[str, str, str]
) -> None:
    assert verdict(state) == want


def test_a_blocked_model_keeps_its_runner() -> None:
    state = cluster(node(), model(blocked=Reason.PROFILE_NOT_FOUND), runner())
    assert decided(state) == []
    assert verdict(state)[0] == "Up"


def test_while_a_replaced_runner_drains_no_other_one_of_its_node_is_replaced() -> None:
    old = draining(runner("a", 5, hash="h1"), Reason.REPLACED, newcomer="ns/a")
    fresh = runner("a", 5, hash="h2", uid="r-a2", ordinal=1, stage=Stage.STARTING)
    others = (model("b", 5, hash="h2"), runner("b", 5, hash="h1"))
    plan = make_plan(cluster(node(), model("a", 5, hash="h2"), old, fresh, *others))
    assert [a for a in plan.actions if isinstance(a, Reserve)] == []


def test_an_old_copy_goes_only_once_a_new_one_is_more_than_are_wanted() -> None:
    kept = model("a", 5, hash="h2", min_replicas=2)
    old = runner("a", 5, hash="h1")
    fresh = [runner("a", 5, hash="h2", uid=f"new-{at}", ordinal=at) for at in (1, 2)]
    few = make_plan(cluster(node(), kept, old, fresh[0]))
    assert [a for a in few.actions if isinstance(a, Drain)] == []
    enough = make_plan(cluster(node(), kept, old, *fresh))
    assert [a.runner for a in enough.actions if isinstance(a, Drain)] == ["r-a"]


def test_of_two_old_runners_the_one_that_nobody_uses_goes_first() -> None:
    busy = runner("a", 5, hash="h1", busy=1)
    idle_one = runner("a", 5, hash="h1", uid="idle", ordinal=1)
    fresh = runner("a", 5, hash="h2", uid="new", ordinal=2)
    plan = make_plan(cluster(node(), model("a", 5, hash="h2"), busy, idle_one, fresh))
    assert [a.runner for a in plan.actions if isinstance(a, Drain)] == ["idle"]
