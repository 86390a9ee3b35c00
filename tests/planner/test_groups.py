"""Do groups over several nodes get all of their places or none, and end as one?"""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth.planner.actions import Drain, Place, Refuse, Reserve, Seat, StartPod, Stop
from berth.planner.plan import make_plan
from berth.planner.state import Claim, Model, Need, Node, Runner, Stage
from berth.reasons import Reason
from builders import NOW, cluster, gib, model, node, runner, waiting
from planner.promises import check_memory
from planner.world import World


def need(hosts: int, *gpus: float, host: float = 1.0) -> Need:
    return Need(gib(host), tuple(gib(size) for size in gpus), hosts=hosts, variant=f"over {hosts}")


def group(name: str = "g", *needs: Need, **more: object) -> Model:
    """A model that one request waits for, over two nodes unless told otherwise."""
    return waiting(name, needs=needs or (need(2, 20.0),), **more)  # type: ignore[arg-type]


def placed(*parts: Node | Model | Runner) -> list[tuple[str, ...]]:
    plan = make_plan(cluster(*parts))
    return [
        (a.place.node, *(seat.place.node for seat in a.seats))
        for a in plan.actions
        if isinstance(a, Reserve)
    ]


def members(stage: Stage = Stage.UP, **more: object) -> tuple[Runner, Runner]:
    """A group of two that is there already."""
    head = runner("g", 20, on="gpu-1", uid="head", stage=stage, **more)  # type: ignore[arg-type]
    part = runner("g", 20, on="gpu-2", uid="part", stage=stage, part_of="head")
    return head, part


PAIR = (node("gpu-1"), node("gpu-2"))


@pytest.mark.parametrize(
    ("parts", "want"),
    [
        pytest.param((*PAIR, group()), [("gpu-1", "gpu-2")], id="a node for each member"),
        pytest.param((PAIR[0], group()), [], id="one node is not two"),
        pytest.param((node(gpus=2), group()), [], id="nor are two devices of one"),
        pytest.param(
            (*PAIR, group("g", need(1, 20.0), need(2, 10.0))), [("gpu-1",)], id="fewest nodes first"
        ),
        pytest.param(
            (*PAIR, group("g", need(1, 40.0), need(2, 20.0))), [("gpu-1", "gpu-2")],
            id="more nodes where one cannot hold it",
        ),
        pytest.param(
            (node("gpu-1", gpus=2), node("gpu-2", gpus=2), group("g", need(2, 20.0, 20.0))),
            [("gpu-1", "gpu-2")], id="as many devices on each",
        ),
        pytest.param(
            (node("gpu-1", gpus=2), node("gpu-2"), group("g", need(2, 20.0, 20.0))), [],
            id="not two here and one there",
        ),
        pytest.param(
            (*PAIR, node("gpu-3"), runner("x", 20, on="gpu-1"), model("x", 20), group()),
            [("gpu-2", "gpu-3")], id="free nodes before nodes with victims",
        ),
        pytest.param(
            (*PAIR, runner("x", 20, on="gpu-1", busy=1), model("x", 20), group()), [],
            id="a busy runner on one of them: nobody is touched",
        ),
    ],
)  # fmt: skip
def test_a_group_gets_all_of_its_nodes_or_none(
    parts: tuple[Node | Model | Runner, ...], want: list[tuple[str, ...]]
) -> None:
    assert placed(*parts) == want


def test_the_reservation_names_every_seat() -> None:
    action = make_plan(cluster(*PAIR, group())).actions[0]
    assert isinstance(action, Reserve)
    claim = Claim(gib(1), (("GPU-gpu-2-0", gib(20)),))
    assert action.seats == (Seat(Place("gpu-2", ("GPU-gpu-2-0",)), claim),)


def test_victims_on_every_node_drain_together() -> None:
    state = cluster(
        *PAIR, model("x", 20), model("y", 20), runner("x", 20, on="gpu-1"),
        runner("y", 20, on="gpu-2"), group(),
    )  # fmt: skip
    plan = make_plan(state)
    assert [type(a).__name__ for a in plan.actions] == ["Reserve", "Drain", "Drain"]


def test_a_group_is_a_victim_as_a_whole_on_any_of_its_nodes() -> None:
    state = cluster(
        *PAIR, model("g", needs=(need(2, 20.0),)), *members(),
        waiting("x", 20, node_selector={"only": "gpu-2"}),
    )  # fmt: skip
    nodes = tuple(replace(n, labels={"only": n.name}) for n in state.nodes)
    plan = make_plan(replace(state, nodes=nodes))
    drains = [a for a in plan.actions if isinstance(a, Drain)]
    assert [(d.runner, d.newcomer) for d in drains] == [("head", "ns/x")]


def test_too_few_nodes_for_a_group_is_final_and_says_how_many() -> None:
    plan = make_plan(cluster(PAIR[0], group("g", need(3, 20.0))))
    refusal = plan.actions[0]
    assert isinstance(refusal, Refuse)
    assert (refusal.reason, refusal.final) == (Reason.NEVER_FITS, True)
    assert refusal.message == "model g needs 3 nodes with 20 GiB on each; 1 could hold that"


def test_a_group_starts_as_one_and_only_when_all_are_admitted() -> None:
    head, part = members(Stage.RESERVED)
    admitted = replace(head, admitted_until=NOW + 60)
    plan = make_plan(cluster(*PAIR, group(), admitted, part))
    assert StartPod("head") in plan.actions
    # The head tells for all: not admitted while one of them is not.
    plan = make_plan(cluster(*PAIR, group(), head, part))
    assert not [a for a in plan.actions if isinstance(a, StartPod)]


def test_a_lost_node_ends_the_whole_group() -> None:
    lost = replace(PAIR[1], ready=False, not_ready_since=NOW - 61)
    plan = make_plan(cluster(PAIR[0], lost, group(), *members()))
    assert [(a.runner, a.reason) for a in plan.actions if isinstance(a, Stop)] == [
        ("head", Reason.NODE_LOST)
    ]


def test_a_member_left_over_counts_until_it_is_gone() -> None:
    orphan = members()[1]
    assert placed(*PAIR, group(), orphan) == [("gpu-1", "gpu-2")]
    plan = make_plan(cluster(*PAIR, waiting("x", 20), model("y", 20), orphan))
    assert plan.verdicts[0].state.value == "Waiting"


# Whole stories.


def story(*models: Model, nodes: int = 2, **more: object) -> World:
    fleet = {f"gpu-{n}": node(f"gpu-{n}") for n in range(1, nodes + 1)}
    return World(fleet, {m.key: m for m in models}, promises=(_whole,), **more)  # type: ignore[arg-type]


def _whole(world: World, state: object, plan: object) -> None:
    """Never half a group, never more than a place has."""
    check_memory(world, state)  # type: ignore[arg-type]
    for truth in world.runners.values():
        head = truth.seen.part_of
        if head and head in world.runners:
            stages = {truth.seen.stage, world.runners[head].seen.stage}
            assert len(stages - {Stage.FAILED}) <= 1


def idle(name: str, hosts: int, size: float, **more: object) -> Model:
    return model(name, needs=(need(hosts, size),), **more)  # type: ignore[arg-type]


def test_a_group_serves_and_a_member_that_dies_takes_it_down_and_it_comes_back() -> None:
    world = story(idle("g", 2, 20.0, min_replicas=1))
    world.run(30)
    assert len(world.runners) == 2
    for _ in range(2):
        part = next(uid for uid, t in world.runners.items() if t.seen.part_of)
        world.crash(part)
        world.run(90)
        up = [t.seen.stage for t in world.runners.values()]
        assert up == [Stage.UP, Stage.UP]
    world.request("ns/g", 1)
    world.run(30)
    assert world.served == {"ns/g": 1}


def test_files_are_fetched_on_every_node_before_anybody_is_touched() -> None:
    world = story(idle("g", 2, 20.0, files=(("sha-g", gib(3)),)), model("x", 20, min_replicas=0))
    world.request("ns/x", 1)
    world.run(70)
    world.request("ns/g", 1)
    world.run(2)
    assert {t.seen.stage for t in world.runners.values()} == {Stage.UP, Stage.PREPARING}
    world.run(120)
    assert world.served == {"ns/x": 1, "ns/g": 1}


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    sizes=st.lists(st.tuples(st.integers(1, 3), st.sampled_from([5.0, 11.0, 20.0])), min_size=1, max_size=4),
    nodes=st.integers(3, 4),
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.booleans()), max_size=14),
)  # fmt: skip
def test_random_groups_are_whole_never_over_capacity_and_all_served(
    sizes: list[tuple[int, float]], nodes: int, steps: list[tuple[int, int, bool]]
) -> None:
    names = [f"m{index}" for index in range(len(sizes))]
    world = story(*(idle(n, *size) for n, size in zip(names, sizes, strict=True)), nodes=nodes)
    asked = 0
    for index, length, crash in steps:
        world.request(f"ns/{names[index % len(names)]}", float(length))
        asked += 1
        world.run(length * 3.0)
        alive = [u for u, t in world.runners.items() if t.seen.stage in (Stage.STARTING, Stage.UP)]
        if crash and alive:
            world.crash(alive[length % len(alive)])
    world.run(3000)
    assert sum(world.served.values()) + world.cut == asked
