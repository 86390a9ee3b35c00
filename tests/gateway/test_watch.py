"""Is the catalogue what the API server says, and what it said last while it is away?"""

import asyncio
import json
import time
from dataclasses import replace

import pytest

from berth.api.model import Model
from berth.api.runner import Runner
from berth.gateway.catalog import Catalog, Route, Served, verdict
from berth.gateway.watch import Feed, fill_from, route_of, served_of
from berth.kube.client import ApiUnreachableError
from berth.reasons import State
from gateway.world import until


def model(**status) -> Model:
    return Model.model_validate(
        {
            "metadata": {
                "name": "m",
                "namespace": "team",
                "uid": "u-1",
                "generation": 2,
                "creationTimestamp": "2026-01-02T03:04:05Z",
                "resourceVersion": "7",
            },
            "spec": {
                "source": {"url": {"uri": "https://example.com/m.gguf"}},
                "id": "Org/M",
                "aliases": ["mm"],
                "profile": "fast",
                "idleTimeout": "10m",
            },
            "status": {"observedGeneration": 2, **status},
        }
    )


def runner(**change) -> dict:
    body = {
        "metadata": {"name": "m-1-0-0", "namespace": "team", "uid": "r-1", "resourceVersion": "8"},
        "spec": {"modelRef": {"name": "m", "uid": "u-1"}, "nodeName": "a", "parallel": 3},
        "status": {"state": "Up", "address": "10.1.2.3:8080"},
    }
    for path, value in change.items():
        at, *rest = path.split("__")
        body[at] = {**body[at], rest[0]: value}
    return body


def ready(reason: str, message: str = "") -> list[dict]:
    return [
        {
            "type": "Ready",
            "status": "True" if reason == "Up" else "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": "2026-01-02T04:00:00Z",
        }
    ]


def test_a_model_as_clients_meet_it():
    status = {
        "conditions": ready("Fetching", "3 of 8 GiB"),
        "activeProfile": "fast",
        "contextLength": 8192,
        "loadSeconds": [10, 30, 20],
    }
    assert served_of(model(**status), 1800) == Served(
        namespace="team",
        name="m",
        id="Org/M",
        uid="u-1",
        aliases=("mm",),
        created=1767323045,
        state=State.FETCHING,
        message="3 of 8 GiB",
        since="2026-01-02T04:00:00Z",
        profile="fast",
        context_length=8192,
        load_seconds=(10, 30, 20),
        idle_timeout_s=600,
    )


def test_a_model_that_nobody_has_looked_at_yet():
    served = served_of(model(observedGeneration=None), 1800)
    assert (served.state, served.is_current) == (State.DOWN, False)


def test_a_refusal_keeps_its_reason_and_its_places():
    places = [{"reason": "Memory", "node": "a", "need": 100, "have": 24}]
    status = {
        "conditions": ready("Waiting"),
        "lastRefusal": {"reason": "InsufficientCapacity", "message": "100 > 24", "places": places},
    }
    served = served_of(model(**status), 1800)
    assert served.reason == "InsufficientCapacity"
    refused = verdict(served)
    assert refused is not None
    assert refused.error()["code"] == "insufficient_capacity"
    assert refused.facts["places"][0]["need"] == 100


def test_a_younger_holder_of_an_id_is_known():
    conditions = [*ready("Down"), {"type": "IdUnique", "status": "False", "reason": "DuplicateId"}]
    assert served_of(model(conditions=conditions), 1800).is_duplicate


def test_a_runner_that_is_up_is_a_route():
    assert route_of(Runner.model_validate(runner())) == Route(
        "r-1", "team/m", "10.1.2.3", 8080, 3, "m-1-0-0"
    )


def test_an_address_may_be_ipv6():
    route = route_of(Runner.model_validate(runner(status__address="[fd00::1]:8080")))
    assert route is not None
    assert (route.host, route.port) == ("fd00::1", 8080)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"status__state": "Starting"}, id="starting"),
        pytest.param({"status__state": "Lost"}, id="lost"),
        pytest.param({"status__address": None}, id="no address"),
        pytest.param(
            {"spec__drain": {"reason": "MakeRoom", "since": "x", "deadline": "y"}}, id="draining"
        ),
        pytest.param({"metadata__deletionTimestamp": "2026-01-02T04:00:00Z"}, id="being deleted"),
    ],
)
def test_a_runner_that_may_not_be_sent_anything_is_no_route(change):
    assert route_of(Runner.model_validate(runner(**change))) is None


class FakeKube:
    """Lists what it is given; its watch gives events from a queue."""

    def __init__(self, **objects):
        self.objects = objects
        self.events = {plural: asyncio.Queue() for plural in ("models", "runners")}
        self.is_away = False

    async def list_all(self, ref, **scope):
        if self.is_away:
            raise ApiUnreachableError("away")
        return self.objects.get(ref.plural, []), "1"

    async def watch(self, ref, version, **scope):
        while True:
            yield await self.events[ref.plural].get()


def raw_model(**status) -> dict:
    return json.loads(model(**status).model_dump_json(by_alias=True, exclude_none=True))


async def test_a_runner_that_drains_and_comes_back_is_followed():
    kube, catalog = FakeKube(models=[raw_model()], runners=[runner()]), Catalog()
    changes: list[str] = []
    feed = Feed(kube, catalog, default_idle_s=1800, file=None)
    task = asyncio.ensure_future(feed.run())
    await until(lambda: catalog.is_ready, "the first list")
    assert list(catalog.routes("team/m")) == ["r-1"]
    catalog.changed.append(changes.append)
    drain = {"reason": "MakeRoom", "since": "x", "deadline": "y"}
    await kube.events["runners"].put(("MODIFIED", runner(spec__drain=drain)))
    await until(lambda: not catalog.routes("team/m"), "the route closed")
    await kube.events["runners"].put(("MODIFIED", runner()))
    await until(lambda: catalog.routes("team/m"), "the route open again")
    await kube.events["runners"].put(("DELETED", runner()))
    await until(lambda: not catalog.routes("team/m"), "the route gone")
    await kube.events["models"].put(("DELETED", raw_model()))
    await until(lambda: catalog.get("team/m") is None, "the model gone")
    task.cancel()


async def test_an_event_that_changes_nothing_here_wakes_nobody():
    kube, catalog = FakeKube(models=[raw_model()], runners=[runner()]), Catalog()
    feed = Feed(kube, catalog, default_idle_s=1800, file=None)
    task = asyncio.ensure_future(feed.run())
    await until(lambda: catalog.is_ready, "the first list")
    changes: list[str] = []
    catalog.changed.append(changes.append)
    busy = runner()
    busy["status"] = {**busy["status"], "agent": {"health": {"state": "Ready", "busy": 1}}}
    await kube.events["runners"].put(("MODIFIED", busy))
    await kube.events["models"].put(("MODIFIED", raw_model(restarts=1)))
    await until(lambda: kube.events["models"].empty() and kube.events["runners"].empty(), "read")
    await asyncio.sleep(0.01)
    assert changes == []
    task.cancel()


class SilentKube(FakeKube):
    """Its first watch of each kind never says anything, nor ends."""

    def __init__(self, **objects):
        super().__init__(**objects)
        self.silenced = set()

    async def watch(self, ref, version, **scope):
        if ref.plural not in self.silenced:
            self.silenced.add(ref.plural)
            await asyncio.Event().wait()
        async for event in super().watch(ref, version, **scope):
            yield event


async def test_a_watch_that_falls_silent_is_taken_up_again(monkeypatch):
    """G2: no event, no bookmark and no end of the connection, as behind a firewall that forgets."""
    monkeypatch.setattr("berth.kube.cache.SILENCE_S", 0.05)
    kube, catalog = SilentKube(), Catalog()
    task = asyncio.ensure_future(Feed(kube, catalog, default_idle_s=1800, file=None).run())
    await until(lambda: catalog.is_ready, "the first list")
    await kube.events["models"].put(("ADDED", raw_model()))
    await until(lambda: catalog.get("team/m"), "what the first watch did not tell")
    task.cancel()


async def test_the_last_list_serves_while_the_api_server_is_away(tmp_path, monkeypatch):
    monkeypatch.setattr("berth.gateway.watch.PATIENCE_S", 0.05)
    monkeypatch.setattr("berth.gateway.watch.SAVE_AFTER_S", 0.0)
    file = tmp_path / "list.json"
    kube = FakeKube(models=[raw_model(conditions=ready("Up"))], runners=[runner()])
    task = asyncio.ensure_future(Feed(kube, Catalog(), default_idle_s=1800, file=file).run())
    await until(file.exists, "the list on disk")
    task.cancel()

    kube.is_away = True
    catalog = Catalog()
    task = asyncio.ensure_future(Feed(kube, catalog, default_idle_s=1800, file=file).run())
    await until(lambda: catalog.is_ready, "the list from disk")
    assert catalog.resolve("mm").state is State.UP
    assert list(catalog.routes("team/m")) == ["r-1"]

    kube.objects = {"models": [], "runners": []}
    kube.is_away = False
    await until(lambda: not catalog.models(), "what is gone by now forgotten")
    assert not catalog.routes("team/m")
    task.cancel()


async def test_a_gateway_that_never_saw_a_list_is_not_ready(tmp_path, monkeypatch):
    monkeypatch.setattr("berth.gateway.watch.PATIENCE_S", 0.01)
    kube, catalog = FakeKube(), Catalog()
    kube.is_away = True
    task = asyncio.ensure_future(
        Feed(kube, catalog, default_idle_s=1800, file=tmp_path / "none").run()
    )
    await asyncio.sleep(0.05)
    assert not catalog.is_ready
    task.cancel()


def test_a_file_of_models_and_addresses():
    catalog = Catalog()
    rows = [{"id": "a", "upstreams": ["127.0.0.1:1", "127.0.0.1:2"], "parallel": 2}, {"id": "b"}]
    fill_from({"models": rows}, catalog)
    assert [route.port for route in catalog.routes("default/a").values()] == [1, 2]
    assert catalog.resolve("a").state is State.UP
    assert catalog.resolve("b").state is State.DOWN


def test_a_model_that_a_hold_keeps_away_has_its_facts() -> None:
    said = {"type": "Ready", "status": "False", "reason": "Held", "lastTransitionTime": "x"}
    note = {"name": "h", "reason": "bench", "budget": "20m", "since": "2026-01-01T00:00:00Z"}
    served = served_of(model(conditions=[said], hold=note, loadSeconds=[7]), 60.0)
    refused = verdict(served)
    assert refused is not None
    assert (refused.kind.code, refused.retry_after) == ("model_held", 7), "its budget is long spent"
    assert refused.error()["berth"]["hold"] == note
    assert "timeLeft" not in refused.error()["berth"]
    assert served.hold is not None
    lasts = replace(served, hold=replace(served.hold, ends=time.time() + 600))
    again = verdict(lasts)
    assert again is not None
    assert 590 <= again.facts["timeLeft"] <= 600
    assert again.retry_after == again.facts["timeLeft"] + 7


def test_the_facts_of_a_hold_end_with_it() -> None:
    served = served_of(model(hold={"name": "h", "budget": "20m", "owed": True}), 60.0)
    assert "hold" not in served.facts()
