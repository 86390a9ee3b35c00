"""Which loads were read from memory, and what becomes of the pods that hold copies?"""

from dataclasses import replace
from typing import Any

import pytest

from berth.controller.copies import Shelf
from berth.controller.holding import Holding
from berth.manifests.holder import HolderSettings, holder_claim, holder_pod
from berth.planner.actions import Plan
from berth.planner.state import Claim, Copy, Model, Node, Policy, Runner, Stage, State
from berth.units import Bytes
from controller.objects import GIB, NOW
from controller.test_apply import World

SHA = "ab" * 32
HOLDERS = HolderSettings("berth-system", "berth/operator:1", "/var/lib/berth")


def state(*runners: Runner, ready: bool | None = None, budget: int = 10 * GIB) -> State:
    """One node with one model's file, and a copy of it that is ready, or not, or there is none."""
    copies = () if ready is None else (Copy(SHA, Bytes(GIB), holder_claim(GIB), ready),)
    node = Node(
        "a",
        Bytes(64 * GIB),
        Bytes(60 * GIB),
        files=frozenset({SHA}),
        policy=Policy(name="p", host_weights=Bytes(budget)),
        copies=copies,
    )
    model = Model("ns/m", "u", files=((SHA, Bytes(GIB)),))
    return State(now=NOW, epoch=7, nodes=(node,), models=(model,), runners=runners)


def starting(uid: str = "r") -> Runner:
    return Runner(uid, uid, "ns/m", "a", Claim(Bytes(GIB)), Stage.STARTING)


def up(uid: str = "r", since: float = NOW) -> Runner:
    return replace(starting(uid), stage=Stage.UP, up_since=since)


def test_the_first_load_is_a_miss_and_no_news() -> None:
    shelf = Shelf()
    shelf.saw(state(starting()))
    assert (shelf.tally.hits, shelf.tally.misses, shelf.tally.reloaded) == (0, 1, [])


def test_a_load_counts_once_however_many_passes_see_it() -> None:
    shelf, counted = Shelf(), 0
    for runner in (starting(), starting(), up()):
        shelf.saw(state(runner))
        counted += shelf.tally.misses
    assert counted == 1


def test_a_load_that_is_up_before_any_pass_sees_it_start_counts_too() -> None:
    shelf = Shelf()
    shelf.saw(state(up("old"), ready=True))
    assert shelf.tally.hits == 0, "it was loaded before anybody looked"
    shelf.saw(state(up("old"), up("new"), ready=True))
    assert shelf.tally.hits == 1
    shelf.saw(state(up("old"), up("new"), ready=True))
    assert shelf.tally.hits == 0


def test_a_load_beside_a_ready_copy_is_a_hit_and_beside_one_that_is_read_a_miss() -> None:
    shelf = Shelf()
    shelf.saw(state(starting("one"), ready=True))
    assert (shelf.tally.hits, shelf.tally.misses) == (1, 0)
    shelf.saw(state(starting("two"), ready=False))
    assert (shelf.tally.hits, shelf.tally.misses) == (0, 1)


def test_reading_the_disk_again_is_told() -> None:
    shelf = Shelf()
    shelf.saw(state(up("one")))
    shelf.saw(state(starting("two")))
    assert shelf.tally.reloaded == ["ns/m"]


def test_without_a_budget_nothing_is_counted() -> None:
    shelf = Shelf()
    shelf.saw(state(starting(), budget=0))
    assert (shelf.tally.hits, shelf.tally.misses) == (0, 0)


def world(*pods: dict[str, Any]) -> World:
    return World.of(pods=list(pods))


def holder(phase: str = "Running", *, ready: bool = True) -> dict[str, Any]:
    pod = holder_pod("a", SHA, GIB, HOLDERS)
    pod["metadata"] |= {"uid": "h-1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    conditions = [{"type": "Ready", "status": "True"}] if ready else []
    return pod | {"status": {"phase": phase, "conditions": conditions}}


async def hold(
    one: World, seen: State, shelf: Shelf | None = None, holders: HolderSettings = HOLDERS
) -> Shelf:
    shelf = shelf or Shelf()
    await Holding(replace(one.hands, holders=holders), shelf).run(seen, Plan())
    return shelf


async def test_after_a_load_its_file_is_held_by_a_pod() -> None:
    one = world()
    await hold(one, state(up()))
    assert one.wrote() == [("create", "pods", holder()["metadata"]["name"])]


async def test_a_copy_that_nothing_is_left_for_goes_and_is_counted() -> None:
    one = world(holder())
    shelf = await hold(one, state(ready=True, budget=0))
    assert [verb for verb, *_ in one.wrote()] == ["delete"]
    assert shelf.tally.evictions == 1
    await hold(one, state(ready=True, budget=0), shelf)
    assert len(one.wrote()) == 1


async def test_a_load_that_reads_the_disk_again_is_an_event_of_its_model() -> None:
    one, shelf = world(), Shelf()
    await hold(one, state(up("one"), budget=1), shelf)
    await hold(one, state(starting("two"), budget=1), shelf)
    await one.outbox.settled()
    assert one.events() == ["ReloadedFromDisk"]


async def test_a_new_leader_keeps_the_copies_that_it_finds() -> None:
    one = world(holder())
    await hold(one, state(ready=True))
    assert one.wrote() == []


async def test_a_pod_that_ended_by_itself_is_made_again_after_a_minute() -> None:
    one, shelf = world(holder("Failed")), Shelf()
    await hold(one, state(up()), shelf)
    assert [verb for verb, *_ in one.wrote()] == ["delete"]
    await hold(one, replace(state(up()), now=NOW + 59), shelf)
    assert len(one.wrote()) == 1
    await hold(one, replace(state(up()), now=NOW + 60), shelf)
    assert [verb for verb, *_ in one.wrote()] == ["delete", "create"]


@pytest.mark.parametrize("image", [""])
async def test_without_an_image_no_pod_is_made(image: str) -> None:
    one = world()
    await hold(one, state(up()), holders=replace(HOLDERS, image=image))
    assert one.wrote() == []
