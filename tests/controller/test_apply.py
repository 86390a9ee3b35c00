"""Which writes does each action become, and when is a plan dropped?"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from berth.api.meta import timestamp
from berth.api.model import FileFact
from berth.controller.apply import RUNNERS, Application, Hands, StalePlanError
from berth.controller.demands import ensure_demands
from berth.controller.history import History
from berth.controller.launch import Stamp
from berth.controller.observe import Frame, Observation, Remembered, observe
from berth.controller.outbox import Outbox
from berth.controller.priced import Priced
from berth.controller.store import Store
from berth.controller.sweep import restamp, sweep
from berth.controller.telling import Teller
from berth.controller.variants import Variant
from berth.kube.client import ApiError
from berth.kube.refs import Ref
from berth.manifests.names import runner_name
from berth.manifests.pod import PodSettings
from berth.planner.actions import (
    Action,
    Drain,
    Place,
    Plan,
    Prepare,
    Reserve,
    Spare,
    StartPod,
    Stop,
)
from berth.planner.state import Claim, Need
from berth.reasons import Reason
from berth.runtimes.base import Job, Launch, Runtime, Traits, Way
from berth.units import Bytes
from controller.objects import GIB, NOW, inventory, model, node, pod, runner, store
from fakes.kube import FakeKube, Object, Write


class Engine(Runtime):
    """Its command is always the same."""

    traits = Traits(name="engine")

    def ways(self, job: Job) -> list[Way]:
        return []

    def command(self, settings: object, launch: Launch) -> list[str]:
        return ["engine", "-x"]


PRICED = Priced(
    settings_hash="s1",
    variants=(
        Variant("cpu", "image:1", Engine(), None, Launch("/m", "m"), host_file_pages=9 * GIB),
    ),
    files=(FileFact(name="m.gguf", size=GIB, sha256="f" * 64),),
)
NEED = Need(Bytes(2 * GIB), variant="cpu", text="2 GiB")
PLACE = Place("a", ("GPU-1",))
CLAIM = Claim(Bytes(2 * GIB), (("GPU-1", Bytes(GIB)),))


class Server(FakeKube):
    """A fake API server that deletes, too."""

    async def delete(
        self,
        ref: Ref,
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        grace_s: int | None = None,
        propagation: str = "Background",
    ) -> bool:
        self._accept(Write("delete", ref.plural, f"{namespace}/{name}", {"graceS": grace_s}))
        return self.objects.pop((ref.plural, namespace, name), None) is not None


@dataclass
class World:
    """A store, the server behind it, and what a pass needs to write."""

    store: Store
    server: Server = field(default_factory=Server)
    now: float = NOW
    leads: bool = True
    outbox: Outbox = field(default_factory=Outbox)

    def __post_init__(self) -> None:
        self.teller = Teller(self.server, self.outbox)  # type: ignore[arg-type]

    @classmethod
    def of(cls, **kinds: list[Object]) -> "World":
        kinds.setdefault("models", [model()])
        kinds.setdefault("nodes", [node()])
        kinds.setdefault("inventories", [inventory(devices=[{"uuid": "GPU-1", "index": 3}])])
        world = cls(store(**kinds))
        for table in world.store.tables():
            for obj in kinds.get(table.ref.plural, []):
                world.server.put(table.ref, obj)
        return world

    @property
    def hands(self) -> Hands:
        return Hands(
            kube=self.server,  # type: ignore[arg-type]
            store=self.store,
            teller=self.teller,
            outbox=self.outbox,
            stamp=Stamp(7, "7-1-1"),
            clock=lambda: self.now,
            leads=lambda: self.leads,
            pod_settings=PodSettings(),
        )

    def look(self) -> Observation:
        frame = Frame(epoch=7, healthy_since=0.0, prices={"ns/m": PRICED})
        return observe(self.store, Remembered(History()), frame, NOW)

    async def apply(self, *actions: Action) -> Application:
        application = Application(self.hands, self.look())
        await application.run(Plan(actions))
        await self.outbox.settled()
        return application

    def wrote(self) -> list[tuple[str, str, str]]:
        writes = [w for w in self.server.writes if w.plural != "events"]
        return [(w.verb, w.plural, w.key) for w in writes]

    def events(self) -> list[str]:
        return [w.body["reason"] for w in self.server.writes if w.plural == "events"]

    def body(self, number: int = 0) -> Object:
        return [w for w in self.server.writes if w.plural != "events"][number].body


def _reserve(**more: Any) -> Reserve:
    return Reserve("ns/m", PLACE, CLAIM, NEED, ordinal=0, attempt=2, **more)


async def test_a_reservation_is_a_runner_with_its_claim_and_a_name_of_its_own() -> None:
    world = World.of()
    await world.apply(_reserve())
    assert world.wrote() == [("create", "runners", runner_name("ns", "m", ordinal=0, attempt=2))]
    spec = world.body()["spec"]
    assert (spec["stage"], spec["epoch"], spec["passId"]) == ("Reserved", 7, "7-1-1")
    assert spec["claim"] == {
        "host": 2 * GIB,
        "hostFilePages": 2 * GIB,
        "hostCopied": 0,
        "devices": [{"device": "GPU-1", "index": 3, "memory": GIB}],
        "disk": GIB,
    }
    assert (spec["image"], spec["command"], spec["nodeName"]) == ("image:1", ["engine", "-x"], "a")
    assert [r.spec.stage for r in world.store.runners] == ["Reserved"]
    assert world.events() == ["Placed"]


async def test_preparing_touches_nobody_and_has_no_pass_to_admit() -> None:
    world = World.of()
    await world.apply(Prepare("ns/m", PLACE, CLAIM, NEED, 0, 0))
    assert world.body()["spec"]["stage"] == "Preparing"


async def test_a_prepared_runner_is_moved_on_and_keeps_its_object() -> None:
    world = World.of(runners=[runner(stage="Preparing")])
    await world.apply(_reserve(runner="uid-m-0"))
    assert world.wrote() == [("apply", "runners", "ns/m-0")]
    assert world.body()["metadata"] == {"uid": "uid-m-0"}
    assert world.body()["spec"]["stage"] == "Reserved"
    assert world.body()["spec"]["passId"] == "7-1-1"


async def test_the_pod_of_an_admitted_runner() -> None:
    world = World.of(runners=[runner()])
    await world.apply(StartPod("uid-m-0"))
    assert world.wrote() == [("create", "pods", "m-0")]
    assert world.store.pods.get("ns/m-0") is not None


async def test_a_drain_is_an_order_and_sparing_takes_it_back() -> None:
    world = World.of(runners=[runner()])
    order = Drain("uid-m-0", Reason.MAKE_ROOM, NOW + 300, newcomer="ns/n")
    await world.apply(order)
    assert world.body()["spec"]["drain"] == {
        "reason": "MakeRoom",
        "since": timestamp(NOW),
        "deadline": timestamp(NOW + 300),
        "newcomer": "ns/n",
    }
    await world.apply(Spare("uid-m-0"))
    assert "drain" not in world.body(1)["spec"]
    assert world.events() == ["Draining", "Spared"]


async def test_stopping_deletes_the_runner_before_its_pod() -> None:
    world = World.of(runners=[runner()], pods=[pod()])
    await world.apply(Stop("uid-m-0", Reason.IDLE))
    assert world.wrote() == [("delete", "runners", "ns/m-0"), ("delete", "pods", "ns/m-0")]
    assert world.body(1) == {"graceS": None}
    (entry,) = world.look().entries
    assert entry.runner is None
    assert entry.pod is not None
    assert entry.pod.deleting
    assert world.events() == ["Unloaded"]


async def test_a_killed_runner_goes_quickly_and_counts_as_a_failure() -> None:
    world = World.of(runners=[runner()], pods=[pod()])
    done = (await world.apply(Stop("uid-m-0", Reason.KILLED, grace_s=1.0))).done
    assert world.body(1) == {"graceS": 1}
    assert [f.outcome.reason for f in done.failures] == [Reason.KILLED]


async def test_a_pod_that_ended_was_counted_when_it_was_seen() -> None:
    world = World.of(runners=[runner()], pods=[pod(phase="Failed")])
    done = (await world.apply(Stop("uid-m-0", Reason.CRASHED))).done
    assert done.failures == []
    assert world.events() == ["Crashed"]


async def test_a_fetch_that_failed_is_told_as_that_with_its_reason() -> None:
    fetch = {"state": "Failed", "reason": "HashMismatch", "message": "sha256 is e3b0"}
    world = World.of(runners=[runner(stage="Preparing", status={"agent": {"fetch": fetch}})])
    await world.apply(Stop("uid-m-0", Reason.HASH_MISMATCH))
    assert world.events() == ["FetchFailed"]


async def test_an_eviction_says_for_whom() -> None:
    order = {
        "reason": "MakeRoom",
        "since": timestamp(NOW),
        "deadline": timestamp(NOW),
        "newcomer": "ns/n",
    }
    world = World.of(runners=[runner(drain=order)], pods=[pod()])
    done = (await world.apply(Stop("uid-m-0", Reason.MAKE_ROOM))).done
    assert done.evicted == 1
    event = next(w for w in world.server.writes if w.plural == "events")
    assert (event.body["reason"], "ns/n" in event.body["note"]) == ("Evicted", True)


def _refusing(status: int, plural: str) -> Callable[[Write], ApiError | None]:
    return lambda w: ApiError(status, "X", "no") if w.plural == plural else None


async def test_a_runner_that_exists_already_is_seen_and_the_plan_dropped() -> None:
    world, name = World.of(), runner_name("ns", "m", ordinal=0, attempt=2)
    world.server.put(RUNNERS, runner(name))
    world.server.refuses = _refusing(409, "runners")
    with pytest.raises(StalePlanError):
        await world.apply(_reserve())
    assert [r.metadata.name for r in world.store.runners] == [name]


async def test_a_runner_that_exists_and_cannot_be_read_costs_nobody_else_anything() -> None:
    world, name = World.of(runners=[runner("m-1")]), runner_name("ns", "m", ordinal=0, attempt=2)
    world.server.put(RUNNERS, runner(name, claim="so much"))
    world.server.refuses = lambda w: (
        ApiError(409, "AlreadyExists", "no") if w.verb == "create" else None
    )
    done = (await world.apply(_reserve(), Stop("uid-m-1", Reason.IDLE))).done
    assert [f.outcome.reason for f in done.failures] == [Reason.UNSUPPORTED]
    assert ("delete", "runners", "ns/m-1") in world.wrote()


async def test_a_write_that_is_refused_for_good_is_left_out_and_the_rest_goes_on() -> None:
    world = World.of(runners=[runner("m-0"), runner("m-1")])
    world.server.refuses = lambda w: (
        ApiError(422, "Invalid", "no") if w.verb == "apply" and w.key == "ns/m-0" else None
    )
    order = Drain("uid-m-0", Reason.IDLE, NOW + 300)
    await world.apply(order, Stop("uid-m-1", Reason.IDLE))
    assert world.wrote() == [("delete", "runners", "ns/m-1")]


async def test_an_api_server_that_is_too_busy_drops_the_plan() -> None:
    world = World.of()
    world.server.refuses = _refusing(429, "runners")
    with pytest.raises(StalePlanError):
        await world.apply(_reserve())


async def test_a_pod_whose_runner_is_merely_not_seen_yet_is_left_alone() -> None:
    world = World.of(pods=[pod("m-0")])
    world.server.put(RUNNERS, runner("m-0"))
    await sweep(world.hands)
    assert world.wrote() == []
    assert [r.metadata.name for r in world.store.runners] == ["m-0"]


async def test_a_plan_older_than_5_s_is_dropped_before_its_next_write() -> None:
    world = World.of()
    world.now = NOW + 5.1
    with pytest.raises(StalePlanError):
        await world.apply(_reserve())
    assert world.wrote() == []


async def test_who_leads_no_more_writes_no_more() -> None:
    world = World.of()
    world.leads = False
    with pytest.raises(StalePlanError):
        await world.apply(_reserve())
    assert world.wrote() == []


async def test_what_the_api_server_refuses_is_that_models_failure_and_the_rest_goes_on() -> None:
    world = World.of(runners=[runner("m-0"), runner("m-1")], pods=[pod("m-1")])
    world.server.refuses = lambda w: (
        ApiError(403, "Forbidden", "quota") if (w.verb, w.plural) == ("create", "pods") else None
    )
    done = (await world.apply(StartPod("uid-m-0"), Stop("uid-m-1", Reason.IDLE))).done
    assert [(f.model, f.outcome.reason) for f in done.failures] == [
        ("ns/m", Reason.ADMISSION_ERROR)
    ]
    assert [r.metadata.name for r in world.store.runners] == []


async def test_every_model_gets_its_demand_once() -> None:
    world = World.of()
    for _ in range(2):
        ensure_demands(world.hands, world.look().models)
    await world.outbox.settled()
    ensure_demands(world.hands, world.look().models)
    await world.outbox.settled()
    assert world.wrote() == [("create", "demands", "m")]
    assert world.body()["metadata"]["ownerReferences"][0]["uid"] == "uid-m"


# What a new leader finds.


async def test_a_new_leader_deletes_what_no_model_owns() -> None:
    world = World.of(
        runners=[runner("m-0"), runner("x-0", of="gone")],
        pods=[pod("m-0"), pod("x-0"), pod("y-0"), pod("web", of_runner=False)],
    )
    await sweep(world.hands)
    assert world.wrote() == [
        ("delete", "runners", "ns/x-0"),
        ("delete", "pods", "ns/x-0"),
        ("delete", "pods", "ns/y-0"),
    ]


async def test_a_new_leader_asks_anew_for_admissions_and_leaves_what_runs_alone() -> None:
    world = World.of(
        runners=[runner("m-0"), runner("m-1"), runner("m-2", stage="Preparing")],
        pods=[pod("m-1")],
    )
    await restamp(world.hands)
    assert world.wrote() == [("apply", "runners", "ns/m-0")]
    assert (world.body()["spec"]["passId"], world.body()["spec"]["epoch"]) == ("7-1-1", 7)


async def test_what_touches_different_models_and_nodes_is_written_side_by_side() -> None:
    """The second does not wait for the first; what is on one node keeps the plan's order."""
    names = [f"m{n}" for n in range(3)]
    kinds = {
        "models": [model(name) for name in names],
        "runners": [runner(f"{name}-0", of=name, node=f"n{name[1:]}") for name in names]
        + [runner("m0-1", of="m0", node="n0")],
        "nodes": [node(f"n{n}") for n in range(3)],
    }
    world, under_way, most = World.of(**kinds), 0, 0
    apply = world.server.apply

    async def slow(*args: Any, **more: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(5):
            await asyncio.sleep(0)
        under_way -= 1
        return await apply(*args, **more)

    world.server.apply = slow  # type: ignore[method-assign]
    uids = ["uid-m0-0", "uid-m0-1", "uid-m1-0", "uid-m2-0"]
    await world.apply(*(Spare(uid) for uid in uids))
    assert most == 3
    written = [key for _, _, key in world.wrote()]
    assert sorted(written) == ["ns/m0-0", "ns/m0-1", "ns/m1-0", "ns/m2-0"]
    assert written.index("ns/m0-0") < written.index("ns/m0-1")


async def test_a_plan_that_breaks_off_ends_what_is_under_way_and_begins_nothing() -> None:
    kinds = {"runners": [runner("m-0"), runner("m-1", node="b"), runner("m-2")]}
    world = World.of(**kinds)
    world.server.refuses = lambda w: (
        ApiError(500, "InternalError", "sorry") if w.key == "ns/m-0" else None
    )
    with pytest.raises(StalePlanError):
        await world.apply(Spare("uid-m-0"), Spare("uid-m-1"), Spare("uid-m-2"))
    assert world.wrote() == []
