"""Where does a wanted model go?"""

from collections.abc import Sequence

import pytest

from berth.planner.actions import Refuse, Reserve, Stop, Wait
from berth.planner.plan import make_plan
from berth.planner.state import Need, Stage, State, Taint, Toleration
from berth.reasons import Reason
from builders import (
    NOW,
    cluster,
    cpu_node,
    device,
    failed,
    gib,
    model,
    need,
    node,
    policy,
    runner,
    waiting,
)
from planner.told import only, places, refusals

FILES = (("sha-a", gib(3)),)

PLACED = [
    pytest.param(
        cluster(node(), waiting()),
        [("Reserve", "gpu-1", ("0",))],
        id="a model that somebody waits for is put where it fits",
    ),
    pytest.param(
        cluster(node(), waiting(files=FILES)),
        [("Prepare", "gpu-1", ("0",))],
        id="files that are not on the node are fetched before anything is reserved",
    ),
    pytest.param(
        cluster(node("gpu-1"), node("gpu-2", files=["sha-a"]), waiting(files=FILES)),
        [("Reserve", "gpu-2", ("0",))],
        id="a node that has the files comes first",
    ),
    pytest.param(
        cluster(
            node("gpu-1"),
            node("gpu-2", policy=policy(trust=frozenset({"Command"}))),
            waiting(runs_code=frozenset({"Command"})),
            waiting("b", 20),
        ),
        [("Reserve", "gpu-2", ("0",)), ("Reserve", "gpu-1", ("0",))],
        id="a profile's own code goes where a policy trusts it, and another model goes anywhere (R16)",
    ),
    pytest.param(
        cluster(node("gpu-1", gpu=51.2), node("gpu-2", gpu=25.6), waiting()),
        [("Reserve", "gpu-2", ("0",))],
        id="the tightest fit comes first",
    ),
    pytest.param(
        cluster(node("gpu-2"), node("gpu-1"), waiting()),
        [("Reserve", "gpu-1", ("0",))],
        id="equal places are taken by name",
    ),
    pytest.param(
        cluster(node(), model(away_for="training")),
        [],
        id="what was unloaded for a hold stays away while it lasts, unless somebody asks",
    ),
    pytest.param(
        cluster(node("gpu-1", held_by="training"), node("gpu-2"), waiting(away_for="training")),
        [("Reserve", "gpu-2", ("0",))],
        id="what was unloaded for a hold is loaded elsewhere when asked for",
    ),
    pytest.param(
        cluster(node(), model(returns=True)),
        [("Reserve", "gpu-1", ("0",))],
        id="what was unloaded for a hold that is over is loaded again though nobody waits",
    ),
    pytest.param(
        cluster(node(), model(returns=True), runner("b", 20, busy=1), model("b", 20)),
        [],
        id="what returns after a hold waits for who is busy in its place",
    ),
    pytest.param(
        cluster(node(gpus=2), runner("b", 20), model("b", 20), waiting(gpu=20)),
        [("Reserve", "gpu-1", ("1",))],
        id="a free device comes before a victim",
    ),
    pytest.param(
        cluster(node(gpus=4), waiting(needs=(need(gpus=(10, 10)),))),
        [("Reserve", "gpu-1", ("0", "1"))],
        id="tensor parallelism takes as many devices as it asks for",
    ),
    pytest.param(
        cluster(node(gpus=2), waiting(device="cuda:1")),
        [("Reserve", "gpu-1", ("1",))],
        id="a device asked for by index is the one that is used",
    ),
    pytest.param(
        cluster(node(gpus=2), waiting(device="GPU-gpu-1-1")),
        [("Reserve", "gpu-1", ("1",))],
        id="a device asked for by UUID is the one that is used",
    ),
    pytest.param(
        cluster(node(gpus=2, policy=policy(devices=frozenset({"1"}))), waiting()),
        [("Reserve", "gpu-1", ("1",))],
        id="devices that the policy does not list are left alone",
    ),
    pytest.param(
        cluster(cpu_node(), waiting(gpu=None, host=8)),
        [("Reserve", "cpu-1", ())],
        id="a node without a GPU runs models on its CPU",
    ),
    pytest.param(
        cluster(node(), cpu_node(), waiting(needs=(need(10), need(None, 11)))),
        [("Reserve", "gpu-1", ("0",))],
        id="auto takes a GPU first",
    ),
    pytest.param(
        cluster(node(), cpu_node(), waiting(needs=(need(40), need(None, 41)))),
        [("Reserve", "cpu-1", ())],
        id="the CPU is used where no GPU could hold the model even emptied",
    ),
    pytest.param(
        cluster(
            node(), cpu_node(), waiting(needs=(need(20), need(None, 21))),
            model("b", 20), runner("b", 20, busy=1),
        ),
        [],
        id="a busy GPU means waiting, never the CPU",
    ),
    pytest.param(
        cluster(node(policy=policy(cpu_runners="Always")), waiting(gpu=None)),
        [("Reserve", "gpu-1", ())],
        id="a policy may allow CPU runners beside GPUs",
    ),
    pytest.param(
        cluster(node(), waiting(needs=(need(30, 2), need(22, 12), need(15, 20)))),
        [("Reserve", "gpu-1", ("0",))],
        id="experts go to the host where the model is larger than the GPU",
    ),
    pytest.param(
        cluster(
            node("gpu-1", labels={"zone": "x"}), node("gpu-2", labels={"zone": "y"}),
            waiting(node_selector={"zone": "y"}),
        ),
        [("Reserve", "gpu-2", ("0",))],
        id="the node selector is kept",
    ),
    pytest.param(
        cluster(
            node(taints=(Taint("team", "x"),)),
            waiting(tolerations=(Toleration("team", "Equal", "x"),)),
        ),
        [("Reserve", "gpu-1", ("0",))],
        id="a tolerated taint does not matter",
    ),
    pytest.param(
        cluster(node("gpu-1"), node("gpu-2"), waiting(local_nodes=frozenset({"gpu-2"}))),
        [("Reserve", "gpu-2", ("0",))],
        id="files that one node alone can see tie the model to it",
    ),
    pytest.param(
        cluster(node("gpu-1"), node("gpu-2"), waiting(restarts=failed(Reason.NO_MEMORY, excluded=(("gpu-1", NOW + 30),), count=0))),
        [("Reserve", "gpu-2", ("0",))],
        id="a node where a load just failed is left out",
    ),
    pytest.param(
        cluster(
            node(), waiting("a", 20, since=NOW - 5), waiting("b", 20, since=NOW - 9),
        ),
        [("Reserve", "gpu-1", ("0",))],
        id="of two that wait for one place one gets it",
    ),
    pytest.param(
        cluster(node(gpus=0, devices=(device(0, 0, used=None, unified=True),), host=128), waiting(gpu=100)),
        [("Reserve", "gpu-1", ("0",))],
        id="unified boards are accounted by the host's memory",
    ),
    pytest.param(
        cluster(node(), runner("a", stage=Stage.PREPARING, fetched=True), waiting(files=FILES)),
        [("Reserve", "gpu-1", ("0",))],
        id="a runner whose files were verified is planned again and reserved",
    ),
    pytest.param(
        cluster(node(), model(load_asked=NOW - 1)),
        [("Reserve", "gpu-1", ("0",))],
        id="a load by hand loads",
    ),
    pytest.param(
        cluster(node(), model(used=NOW)),
        [],
        id="use alone never loads",
    ),
    pytest.param(
        cluster(node(), model(min_replicas=2, max_replicas=1)),
        [("Reserve", "gpu-1", ("0",)), ("Reserve", "gpu-1", ("0",))],
        id="minReplicas is loaded without a request",
    ),
    pytest.param(
        cluster(node(gpus=2), model(pinned=True, pin_to=("gpu-1/cuda:1", "gpu-1/cuda:0"))),
        [("Reserve", "gpu-1", ("0",)), ("Reserve", "gpu-1", ("1",))],
        id="a pinned model is loaded on each place that it names",
    ),
    pytest.param(
        cluster(node(policy=policy(autoload=("Fit",))), model("a", 10), model("b", 20)),
        [("Reserve", "gpu-1", ("0",))],
        id="autoload Fit loads what fits without taking from anybody",
    ),
    pytest.param(
        cluster(
            node(policy=policy(autoload=("Fit",))), model("a", 10, files=FILES), model("b", 5),
            runner("a", 10, stage=Stage.PREPARING, fetched=True),
        ),
        [("Reserve", "gpu-1", ("0",))],
        id="autoload goes on with the model whose files were fetched, and with no other",
    ),
    pytest.param(
        cluster(node(policy=policy(autoload=("Fit",))), model("a", 10, autoload_done=True)),
        [],
        id="autoload has its turn once",
    ),
    pytest.param(
        cluster(node(), waiting(suspended=True)),
        [],
        id="a suspended model is not loaded whoever waits",
    ),
    pytest.param(
        cluster(node(), waiting(since=NOW - 10, not_before=NOW - 5)),
        [],
        id="requests from before an unload by hand load nothing",
    ),
    pytest.param(
        cluster(node(), waiting(since=NOW - 2, not_before=NOW - 5)),
        [("Reserve", "gpu-1", ("0",))],
        id="requests from after an unload by hand load again",
    ),
    pytest.param(
        cluster(node(), waiting(), runner(stage=Stage.STOPPING)),
        [],
        id="no second copy is made while the old pod still stops",
    ),
    pytest.param(
        cluster(
            node("gpu-1", ready=False, not_ready_since=NOW - 61), node("gpu-2"),
            waiting(), runner(),
        ),
        [("Reserve", "gpu-2", ("0",))],
        id="a model whose node is lost goes elsewhere after a minute",
    ),
    pytest.param(
        cluster(
            node("gpu-1", ready=False, not_ready_since=NOW - 30), node("gpu-2"),
            waiting(), runner(),
        ),
        [],
        id="a node that is not ready for a moment loses nothing",
    ),
    pytest.param(
        cluster(node(gpus=2, host=1.5), waiting("a", 10, host=0.4), waiting("b", 10, host=0.4)),
        [("Reserve", "gpu-1", ("0",))],
        id="host memory bounds a place as well as the GPU does",
    ),
    pytest.param(
        cluster(node(allocatable=gib(1.5)), waiting("a", 5), waiting("b", 5)),
        [("Reserve", "gpu-1", ("0",))],
        id="the scheduler's arithmetic bounds a place as well",
    ),
    pytest.param(
        cluster(node(allocatable_pods=110, pods=110), waiting()),
        [],
        id="a node that is full of pods takes no more",
    ),
    pytest.param(
        cluster(node(allocatable_pods=10, pods=9), model("b", 2), runner("b", 2), waiting(files=FILES)),
        [("Prepare", "gpu-1", ("0",))],
        id="our own runners count among the pods",
    ),
    pytest.param(
        cluster(node(disk_free=gib(1)), waiting(files=FILES)),
        [],
        id="files that the disk cannot hold are not fetched",
    ),
    pytest.param(
        cluster(node(devices=(device(used=20.0),)), waiting(gpu=10)),
        [],
        id="memory used by strangers is not free",
    ),
    pytest.param(
        cluster(
            node(), waiting("a", 20), model("b", 20), runner("b", 20, stage=Stage.STOPPING),
        ),
        [("Reserve", "gpu-1", ("0",))],
        id="what is stopping counts as coming, and nobody else is drained",
    ),
    pytest.param(
        cluster(node(), waiting("a", 20, files=FILES), model("b", 20), runner("b", 20, busy=1)),
        [("Prepare", "gpu-1", ("0",))],
        id="files are fetched while the place is still taken",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("state", "want"), PLACED)
def test_a_wanted_model_gets_its_place(state: State, want: Sequence[object]) -> None:
    assert places(make_plan(state)) == want
    assert make_plan(state) == make_plan(state)


def test_a_model_whose_planning_has_a_bug_costs_only_itself() -> None:
    broken = waiting("b", needs=(Need(host="three", gpus=(gib(1),)),))  # type: ignore[arg-type]
    plan = make_plan(cluster(node(), broken, waiting("c")))
    assert places(plan) == [("Reserve", "gpu-1", ("0",))]
    assert refusals(plan) == [(Reason.INTERNAL_ERROR, True)]


def test_a_model_that_failed_waits_for_its_back_off() -> None:
    plan = make_plan(
        cluster(node(), waiting(restarts=failed(Reason.OOM_KILLED, next_retry=NOW + 4)))
    )
    told = only(plan, Wait)
    assert isinstance(told, Wait)
    assert (told.reason, told.until, plan.wake_at) == (Reason.OOM_KILLED, NOW + 4, NOW + 4)


def test_a_terminal_failure_is_final_until_the_user_changes_something() -> None:
    plan = make_plan(cluster(node(), waiting(restarts=failed(Reason.BAD_FLAGS, terminal=True))))
    assert refusals(plan) == [(Reason.BAD_FLAGS, True)]
    assert plan.verdicts[0].message == "model a cannot start: BadFlags"
    told = failed(Reason.BAD_FLAGS, terminal=True, message="unknown flag --x")
    plan = make_plan(cluster(node(), waiting(restarts=told)))
    assert plan.verdicts[0].message == "unknown flag --x"
    assert [v.state.value for v in plan.verdicts] == ["Failed"]


def test_who_waited_beyond_the_window_is_planned_first_whatever_its_priority() -> None:
    state = cluster(
        node(), waiting("a", 20, priority=9), waiting("b", 20, since=NOW - 70, priority=-9)
    )
    placed = [a.model for a in make_plan(state).actions if isinstance(a, Reserve)]
    assert placed == ["ns/b"]


def test_a_place_is_kept_for_who_waited_beyond_the_window() -> None:
    """Small models that come and go would otherwise keep a large one out for ever."""
    large, small = waiting("large", 20, since=NOW - 61), waiting("small", 4)
    state = cluster(node(), large, small, model("b", 8), runner("b", 8, stage=Stage.STARTING))
    plan = make_plan(state)
    assert places(plan) == []
    assert refusals(plan) == [(Reason.LOAD_IN_PROGRESS, False), (Reason.LOAD_IN_PROGRESS, False)]


def test_nothing_is_kept_empty_for_what_strangers_hold() -> None:
    large, small = waiting("large", 20, since=NOW - 61), waiting("small", 4)
    plan = make_plan(cluster(node(devices=(device(used=10.0),)), large, small))
    assert [a.model for a in plan.actions if isinstance(a, Reserve)] == ["ns/small"]


def test_a_node_that_will_not_do_after_all_is_given_up() -> None:
    fetched = runner("a", 10, stage=Stage.PREPARING, fetched=True)
    state = cluster(node("gpu-1"), node("gpu-2", gpu=51.2), waiting("a", 40), fetched)
    assert [a.runner for a in make_plan(state).actions if isinstance(a, Stop)] == ["r-a"]
    gone = cluster(*state.nodes, *state.models)
    assert places(make_plan(gone)) == [("Reserve", "gpu-2", ("0",))]


def test_files_that_nobody_waits_for_any_more_take_from_nobody() -> None:
    fetched = runner("a", 20, stage=Stage.PREPARING, fetched=True)
    state = cluster(node(), model("a", 20), fetched, model("b", 20), runner("b", 20))
    assert list(make_plan(state).actions) == [Stop("r-a", Reason.IDLE)]


def test_one_copy_too_many_is_never_a_final_no() -> None:
    state = cluster(
        node(),
        model("a", 20, min_replicas=2),
        runner("a", 20),
        model("b", 4, pinned=True),
        runner("b", 4),
    )
    assert [final for _, final in refusals(make_plan(state))] == [False]


def test_autoload_goes_one_at_a_time_in_load_order() -> None:
    group = policy(autoload=("Fit",), load_order=("b", "a"))
    state = cluster(node(policy=group), model("a", 5), model("b", 5), model("c", 5))
    placed = [a.model for a in make_plan(state).actions if isinstance(a, Reserve)]
    assert placed == ["ns/b"]
    loading = cluster(
        node(policy=group), model("a", 5), model("b", 5), runner("b", 5, stage=Stage.STARTING)
    )
    assert places(make_plan(loading)) == []


def test_a_named_role_that_does_not_fit_is_told_and_one_of_all_that_fit_is_not() -> None:
    full = (model("b", 20), runner("b", 20, busy=1))
    named = cluster(node(policy=policy(autoload=("a",))), model("a", 20), *full)
    fit = cluster(node(policy=policy(autoload=("Fit",))), model("a", 20), *full)
    assert refusals(make_plan(named)) == [(Reason.BUSY, False)]
    assert refusals(make_plan(fit)) == []


def test_roles_are_loaded_once_the_main_model_is_up() -> None:
    group = policy(autoload=("b",), load_order=("a", "b"))
    main, role = model("a", 5, min_replicas=1), model("b", 5)
    first = make_plan(cluster(node(policy=group), main, role))
    assert [a.model for a in first.actions if isinstance(a, Reserve)] == ["ns/a"]
    told = only(first, Refuse)
    assert isinstance(told, Refuse)
    assert (told.model, told.final) == ("ns/b", False)
    assert told.message == "model b needs 5 GiB; gpu-1: it is loaded once a is up"
    loading = cluster(node(policy=group), main, runner("a", 5, stage=Stage.STARTING), role)
    assert places(make_plan(loading)) == []
    up = cluster(node(policy=group), main, runner("a", 5), role)
    assert [a.model for a in make_plan(up).actions if isinstance(a, Reserve)] == ["ns/b"]


def test_a_main_model_that_cannot_ever_come_holds_up_nobody() -> None:
    group = policy(autoload=("b",), load_order=("a", "b"))
    broken = failed(Reason.BAD_FLAGS, terminal=True)
    for main in (
        model("a", 90, pinned=True),
        model("a", 5, pinned=True, restarts=broken),
        model("a", 5, pinned=True, suspended=True),
    ):
        plan = make_plan(cluster(node(policy=group), main, model("b", 5)))
        assert [a.model for a in plan.actions if isinstance(a, Reserve)] == ["ns/b"]


def test_autoload_loads_on_the_nodes_of_its_own_policy_alone() -> None:
    group = policy(autoload=("Fit",), name="eager")
    loading = (model("x", 5), runner("x", 5, on="gpu-3", stage=Stage.STARTING))
    others = (node("gpu-1"), node("gpu-3", policy=policy(autoload=("x",), name="other")))
    state = cluster(*others, node("gpu-2", policy=group), model("a", 5), *loading)
    assert places(make_plan(state)) == [("Reserve", "gpu-2", ("0",))]
    assert places(make_plan(cluster(*others, model("a", 5), *loading))) == []


def test_a_measured_place_comes_before_one_that_nobody_can_measure() -> None:
    unmeasured = runner("b", 4, measured=(("host", gib(1)),))
    state = cluster(node(gpus=2), waiting("a", 10), model("b", 4), unmeasured)
    assert places(make_plan(state)) == [("Reserve", "gpu-1", ("1",))]


def test_files_that_were_fetched_wait_for_a_place_that_is_busy() -> None:
    fetched = runner("a", 20, stage=Stage.PREPARING, fetched=True)
    state = cluster(node(), waiting("a", 20), fetched, model("b", 20), runner("b", 20, busy=1))
    assert [a for a in make_plan(state).actions if isinstance(a, Stop)] == []
    assert refusals(make_plan(state)) == [(Reason.BUSY, False)]


def test_nothing_is_kept_empty_for_what_pinned_models_hold() -> None:
    large, small = waiting("large", 20, since=NOW - 61), waiting("small", 4)
    pinned = (model("b", 10, pinned=True), runner("b", 10))
    plan = make_plan(cluster(node(), large, small, *pinned))
    assert [a.model for a in plan.actions if isinstance(a, Reserve)] == ["ns/small"]
