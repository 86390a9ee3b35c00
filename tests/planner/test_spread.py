"""Where does a model go that is to stand on every device, or on each place that it names?"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.planner.actions import Drain, Refuse, Reserve, Stop
from berth.planner.arithmetic import rooms
from berth.planner.plan import make_plan
from berth.planner.state import KeptDevices, Model, Node, Stage, State
from berth.reasons import Reason
from builders import NOW, cluster, cpu_node, gib, model, need, node, policy, runner, waiting
from planner.told import places, refusals, victims
from planner.world import World

EVERY = {"per_device": True}
KEPT = policy(kept_devices=(KeptDevices(frozenset({"0"}), frozenset({"a"})),))


def on(device: int, name: str = "a", **more: object) -> object:
    """A runner of 10 GiB on one device of gpu-1."""
    return runner(name, uid=f"r-{name}{device}", at=device, ordinal=device, **more)


SPREAD = [
    pytest.param(
        cluster(node(gpus=3), waiting(**EVERY)),
        [("Reserve", "gpu-1", ("0",))],
        id="the first runner goes where any would",
    ),
    pytest.param(
        cluster(node(gpus=3), model(**EVERY), on(1)),
        [("Reserve", "gpu-1", ("0",)), ("Reserve", "gpu-1", ("2",))],
        id="then each other device gets one",
    ),
    pytest.param(
        cluster(node(gpus=2), model(**EVERY)),
        [],
        id="nobody asks, nothing is loaded",
    ),
    pytest.param(
        cluster(node(gpus=2), waiting(**EVERY), on(0, stage=Stage.STARTING)),
        [("Reserve", "gpu-1", ("1",))],
        id="while somebody waits the copies follow at once",
    ),
    pytest.param(
        cluster(node(gpus=2), model("b", 20), runner("b", 20, at=1), model(**EVERY), on(0)),
        [],
        id="a copy takes from nobody and is silent about it",
    ),
    pytest.param(
        cluster(node("gpu-1", gpus=1), node("gpu-2", gpus=1, gpu=8), node("gpu-3"), model(**EVERY), on(0)),
        [("Reserve", "gpu-3", ("0",))],
        id="a device that could not hold it even emptied gets none",
    ),
    pytest.param(
        cluster(node(gpus=2, policy=policy(devices=frozenset({"0"}))), model(**EVERY), on(0)),
        [],
        id="a device that the policy does not list gets none",
    ),
    pytest.param(
        cluster(node("gpu-1"), node("gpu-2", labels={"zone": "x"}), model(**EVERY, node_selector={"zone": "x"}, pinned=True)),
        [("Reserve", "gpu-2", ("0",))],
        id="only the nodes of its group count",
    ),
    pytest.param(
        cluster(node(gpus=2), model(**EVERY, pinned=True)),
        [("Reserve", "gpu-1", ("0",)), ("Reserve", "gpu-1", ("1",))],
        id="pinned it is on each without a request",
    ),
    pytest.param(
        cluster(node(gpus=2), model(**EVERY, min_replicas=1)),
        [("Reserve", "gpu-1", ("0",))],
        id="kept loaded the first comes without a request",
    ),
    pytest.param(
        cluster(node(gpus=2), model(**EVERY, min_replicas=1), on(0)),
        [("Reserve", "gpu-1", ("1",))],
        id="kept loaded the others follow",
    ),
    pytest.param(
        cluster(node(gpus=4), model(**EVERY, needs=(need(gpus=(10, 10)),), pinned=True)),
        [("Reserve", "gpu-1", ("0", "1"))],
        id="a model that takes two devices has one runner on each node",
    ),
    pytest.param(
        cluster(cpu_node("cpu-1"), cpu_node("cpu-2"), cpu_node("cpu-3", host=3), model(gpu=None, host=8, **EVERY, pinned=True)),
        [("Reserve", "cpu-1", ()), ("Reserve", "cpu-2", ())],
        id="without a GPU every host that holds it gets one",
    ),
    pytest.param(
        cluster(node(gpus=2), model(**EVERY, files=(("sha-a", gib(1)),)), on(0), on(1, stage=Stage.PREPARING, fetched=True)),
        [("Prepare", "gpu-1", ("1",))],
        id="what was prepared for a device is for that device",
    ),
    pytest.param(
        cluster(node("gpu-1"), node("gpu-2"), model(pinned=True, pin_to=("gpu-1", "gone"))),
        [("Reserve", "gpu-1", ("0",))],
        id="a place that is not there does not keep the others from theirs",
    ),
    pytest.param(
        cluster(node("gpu-1"), node("gpu-2"), model(pinned=True, pin_to=("gpu-2",)), on(0)),
        [("Reserve", "gpu-2", ("0",))],
        id="a model pinned elsewhere gets its new place before it leaves the old one",
    ),
    pytest.param(
        cluster(node(gpus=2), model(pinned=True, pin_to=("gpu-1/cuda:1",), hash="h2"), on(1)),
        [("Reserve", "gpu-1", ("1",))],
        id="new settings of a pinned model stay on its place",
    ),
    pytest.param(
        cluster(node(policy=KEPT, gpus=2), waiting("a", 10)),
        [("Reserve", "gpu-1", ("0",))],
        id="a listed model may use a device that is kept for it",
    ),
    pytest.param(
        cluster(node(policy=KEPT, gpus=2), waiting("b", 10)),
        [("Reserve", "gpu-1", ("1",))],
        id="unlisted models swap in the rest",
    ),
    pytest.param(
        cluster(node(policy=policy(models=frozenset({"a"}))), node("gpu-2"), waiting("b", 10)),
        [("Reserve", "gpu-2", ("0",))],
        id="nodes whose policy lists models are for these alone",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("state", "want"), SPREAD)
def test_a_model_on_every_device(state: State, want: Sequence[object]) -> None:
    moved = [
        a.place.devices for a in make_plan(state).actions if isinstance(a, Reserve) and a.runner
    ]
    found = places(make_plan(state))
    assert found == (want if not moved else [("Reserve", "gpu-1", ("1",))])


def test_who_stands_elsewhere_goes_once_each_place_has_its_own() -> None:
    nodes = (node("gpu-1"), node("gpu-2"))
    asked = model(pinned=True, pin_to=("gpu-2",))
    loading = cluster(*nodes, asked, on(0), runner(on="gpu-2", stage=Stage.STARTING, ordinal=1))
    assert make_plan(loading).actions == ()
    up = cluster(*nodes, asked, on(0), runner(on="gpu-2", ordinal=1))
    (drain,) = make_plan(up).actions
    assert isinstance(drain, Drain)
    assert (drain.runner, drain.reason) == ("r-a0", Reason.SCALED_DOWN)


def test_a_place_that_is_not_there_is_told_without_giving_the_model_up() -> None:
    gone = cluster(
        node(), model(pinned=True, pin_to=("gone", "gpu-1"), waiting=1, waiting_since=NOW)
    )
    assert refusals(make_plan(gone)) == []
    nowhere = cluster(
        node(), model(pinned=True, pin_to=("gone", "away"), waiting=1, waiting_since=NOW)
    )
    assert refusals(make_plan(nowhere)) == [(Reason.NO_NODE, True)]
    full = replace(gone, runners=(runner("b", 20, busy=1),), models=(*gone.models, model("b", 20)))
    assert refusals(make_plan(full)) == [(Reason.BUSY, False)]


def test_copies_beyond_the_first_are_the_first_victims() -> None:
    state = cluster(
        node(gpus=2), model("a", 10, **EVERY, used=NOW - 30, min_replicas=1), on(0), on(1),
        model("b", 10, used=NOW - 900), runner("b", 10, at=0), waiting("c", 20),
    )  # fmt: skip
    assert victims(make_plan(state)) == ["r-a1"]


def test_a_silent_agent_costs_no_copy() -> None:
    state = cluster(
        node("gpu-1"), node("gpu-2", agent_fresh=False), model(**EVERY),
        on(0), runner(uid="far", on="gpu-2", ordinal=1),
    )  # fmt: skip
    assert make_plan(state).actions == ()


def test_a_model_that_cannot_be_planned_for_the_moment_keeps_its_copies() -> None:
    state = cluster(node(gpus=2), model(**EVERY, blocked=Reason.PROFILE_NOT_FOUND), on(0), on(1))
    assert [a for a in make_plan(state).actions if isinstance(a, (Drain, Stop))] == []


def test_it_goes_as_a_whole_when_nobody_uses_it() -> None:
    idle = model(**EVERY, used=NOW - 2000)
    old = {"up_since": NOW - 2000}
    state = cluster(node(gpus=2), idle, on(0, **old), on(1, **old))
    drains = [a for a in make_plan(state).actions if isinstance(a, Drain)]
    assert [(a.runner, a.reason) for a in drains] == [("r-a1", Reason.IDLE), ("r-a0", Reason.IDLE)]
    busy = cluster(node(gpus=2), idle, on(0, **old), on(1, busy=1, **old))
    assert make_plan(busy).actions == ()
    young = cluster(node(gpus=2), idle, on(0, **old), on(1, up_since=NOW - 9))
    assert make_plan(young).actions == ()
    kept = cluster(node(gpus=2), replace(idle, min_replicas=1), on(0, **old), on(1, **old))
    assert make_plan(kept).actions == ()


SIZES = st.sampled_from([3.0, 6.0, 11.0, 20.0])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    gpus=st.integers(1, 4),
    nodes=st.integers(1, 3),
    size=SIZES,
    others=st.lists(SIZES, max_size=4),
    kept=st.sampled_from([frozenset(), frozenset({"0"}), frozenset({"0", "1"})]),
    pinned=st.booleans(),
)
def test_each_device_has_one_and_nobody_pays_for_it(
    gpus: int, nodes: int, size: float, others: list[float], kept: frozenset[str], pinned: bool
) -> None:
    """From any start: at most one copy on a device, none where only others may be, nobody evicted but
    for the first one, and in the end every device that has the room has its copy."""
    keep = (KeptDevices(kept, frozenset({"other-0"})),) if kept else ()
    fleet = [node(f"gpu-{i}", gpus=gpus, policy=policy(kept_devices=keep)) for i in range(nodes)]
    every = model("ns/every", size, per_device=True, idle_timeout_s=0.0, pinned=pinned)
    world, stopped = _played(fleet, others, every)
    if not pinned:
        assert stopped == _played(fleet, others, replace(every, per_device=False))[1]
    mine = [t.seen for t in world.of("ns/every")]
    seats = [uuid for r in mine for uuid, _ in r.claim.devices]
    assert len(seats) == len(set(seats)), "two copies on one device"
    assert not [s for s in seats if s.rpartition("-")[2] in kept], "on a device kept for another"
    for each in fleet:
        here = [t.seen for t in world.runners.values() if t.seen.node == each.name]
        free = rooms(each, here)
        for device in each.devices:
            bare = device.uuid not in seats and str(device.index) not in kept
            if bare and free[device.uuid].free >= gib(size):
                assert free["host"].free < gib(1), f"{device.uuid} has the room and no copy"


def _played(fleet: list[Node], others: list[float], every: Model) -> tuple[World, set[str]]:
    """The others are loaded, then ``every`` is asked for; gives who has gone for it."""
    rest = [model(f"ns/other-{i}", size, idle_timeout_s=0.0) for i, size in enumerate(others)]
    world = World({n.name: n for n in fleet}, {m.key: m for m in rest})
    for each in rest:
        world.request(each.key, 1.0)
    world.run(400.0)
    up = {t.seen.uid for t in world.runners.values() if t.seen.stage is Stage.UP}
    world.models[every.key] = every
    world.request(every.key, 1.0)
    world.run(400.0)
    return world, up - set(world.runners)


def test_no_copy_is_made_twice_in_one_plan() -> None:
    state = cluster(node(gpus=2), node("gpu-2", gpus=2), model(**EVERY, pinned=True))
    made = [a for a in make_plan(state).actions if isinstance(a, Reserve)]
    assert len({(a.place.node, a.place.devices) for a in made}) == 4
    assert len({a.ordinal for a in made}) == 4
    assert not [a for a in make_plan(state).actions if isinstance(a, Refuse)]
