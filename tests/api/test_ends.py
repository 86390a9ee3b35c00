"""Deleting things leaves nothing behind; two controllers place nothing twice; an idle fleet writes nothing."""

import asyncio
import collections

from api.bay import Bay
from berth.api.meta import ANNOTATION_UNLOAD


async def test_a_deleted_model_is_gone_with_its_runner_pod_and_demand(bay: Bay) -> None:
    bay.node()
    model = bay.model("m")
    assert (await bay.ask(model)).status_code == 200
    bay.stack.plane.kubectl("delete", "model", model, "-n", bay.name, "--timeout=20s")
    bay.stack.wait(
        "nothing is left",
        lambda: not bay.pods() and not bay.runners() and not bay.stack.every("demands", bay.name),
        60,
    )


async def test_a_namespace_with_loaded_models_goes(bay: Bay) -> None:
    bay.node()
    model = bay.model("m")
    assert (await bay.ask(model)).status_code == 200
    bay.stack.plane.kubectl("delete", "namespace", bay.name, "--wait=false")
    bay.stack.wait("it is gone", lambda: not bay.stack.get("namespace", bay.name), 60)
    assert (await bay.ask(model)).status_code == 404
    bay.stack.plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": bay.name}})


async def test_nothing_of_ours_has_a_finalizer(bay: Bay) -> None:
    bay.node()
    model = bay.model("m")
    assert (await bay.ask(model)).status_code == 200
    kinds = ("models", "runners", "demands", "nodeinventories", "pods")
    found = [obj for kind in kinds for obj in bay.stack.every(kind, bay.name)]
    assert len(found) >= 4
    assert [obj["metadata"]["name"] for obj in found if obj["metadata"].get("finalizers")] == []


async def test_two_controllers_make_each_pod_once(bay: Bay) -> None:
    bay.node()
    bay.stack.start_program("controller", suffix="-second")
    try:
        models = [bay.model(f"m{n}", weights=1 << 28) for n in range(10)]
        answers = await asyncio.gather(*(bay.ask(model) for model in models))
        assert [answer.status_code for answer in answers] == [200] * 10
        assert len(bay.created_pods()) == 10
    finally:
        bay.stack.plane.stop("controller-second")


async def test_an_idle_ready_fleet_writes_nothing_but_the_lease(bay: Bay) -> None:
    bay.node()
    models = [bay.model(f"m{n}", weights=1 << 28) for n in range(5)]
    await asyncio.gather(*(bay.ask(model) for model in models))
    await asyncio.sleep(15)
    before = len(list(bay.stack.plane.audited()))
    await asyncio.sleep(20)
    writes = [
        f"{entry['verb']} {entry['objectRef']['resource']}/{entry['objectRef'].get('name')}"
        for entry in list(bay.stack.plane.audited())[before:]
        if entry["verb"] in ("create", "update", "patch", "delete")
        and entry["objectRef"]["resource"] not in ("leases", "tokenreviews")
        and not entry["user"]["username"].startswith("system:")
    ]
    assert collections.Counter(writes) == {}


async def test_the_api_server_warns_of_nothing_that_the_programs_write(bay: Bay) -> None:
    """An unknown field, a deprecated kind, a name that will not do: each is told as a warning."""
    bay.node(gpus="24Gi")
    model = bay.model("m", weights=1 << 28)
    assert (await bay.ask(model)).status_code == 200
    bay.annotate(model, ANNOTATION_UNLOAD, "now")
    await bay.until("it is unloaded", lambda: not bay.pods())
    said = {
        name: [
            line
            for line in bay.stack.plane.processes.log(name).read_text().splitlines()
            if "the API server warns" in line
        ]
        for name in ("controller", "gateway", "fleet")
    }
    assert said == {"controller": [], "gateway": [], "fleet": []}
