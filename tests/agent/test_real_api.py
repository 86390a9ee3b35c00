"""Does the agent keep its word on a real API server, with an engine that answers over HTTP?"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.places import INVENTORIES, NAMESPACE, NODE, RUNNERS
from agent.world import FAST, pod_object, runner_object
from berth.agent.core import Agent
from berth.agent.health import Look
from berth.agent.probe import HttpProbe, Probe, Target
from berth.agent.statuses import StatusWriter, Subject
from berth.kube.client import Kube
from berth.kube.refs import PODS
from berth.settings import Settings
from berth.units import GiB
from cluster.controlplane import ControlPlane
from fakes.engine import Behaviour, FakeEngine
from fakes.node import FakeFiles, FakeGpu, FakeNode

pytestmark = pytest.mark.api
NAME = "llama-0"
ADDRESS = "127.77.1.1"
CONTROLLER = "berth-controller"
DEADLINE_S = 30.0


@dataclass
class Counting:
    """A probe that counts its looks."""

    inner: HttpProbe
    looks: int = 0

    async def __call__(self, target: Target) -> Look:
        self.looks += 1
        return await self.inner(target)


@contextlib.asynccontextmanager
async def running(
    kube: Kube, folder: Path, node: FakeNode, probe: Probe | None = None
) -> AsyncIterator[Agent]:
    agent = Agent(
        node=NODE,
        kube=kube,
        host=node,
        gpus=node,
        files=FakeFiles(),
        settings=Settings({}),
        probe=probe,
        timing=FAST,
        journal=folder,
    )
    task = asyncio.create_task(agent.run())
    try:
        await until(lambda: not agent.not_ready() or task.done(), "the agent is ready")
        yield agent
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(true: Callable[[], Any], what: str) -> Any:
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not (found := await _value(true())):
                await asyncio.sleep(0.02)
            return found
    except TimeoutError:
        raise AssertionError(f"not within {DEADLINE_S} s: {what}") from None


async def _value(found: Any) -> Any:
    return await found if asyncio.iscoroutine(found) else found


async def told(kube: Kube, *path: str) -> Any:
    """A part of ``status.agent``."""
    found = (await kube.get(RUNNERS, NAME, NAMESPACE)).get("status", {}).get("agent", {})
    for name in path:
        found = (found or {}).get(name)
    return found


async def as_controller(kube: Kube, body: dict[str, Any], subresource: str = "") -> None:
    await kube.apply(
        RUNNERS, NAME, body, manager=CONTROLLER, namespace=NAMESPACE, subresource=subresource
    )


def spec(**fields: Any) -> dict[str, Any]:
    claim = {"host": GiB, "devices": [{"device": "GPU-0", "memory": 8 * GiB}]}
    whole: dict[str, Any] = runner_object(NAME, claim=claim, **fields)["spec"]
    return {"spec": whole}


async def start_pod(kube: Kube) -> str:
    runner = await kube.get(RUNNERS, NAME, NAMESPACE)
    pod = pod_object(NAME, runner, ADDRESS, "Running")
    del pod["metadata"]["uid"]
    pod["spec"]["containers"] = [{"name": "engine", "image": "none"}]
    status = pod.pop("status")
    created = await kube.create(PODS, pod, NAMESPACE)
    await kube.apply_status(PODS, NAME, status, manager="kubelet", namespace=NAMESPACE)
    return str(created["metadata"]["uid"])


async def test_one_load_from_preparing_to_quiet(kube: Kube, plane: ControlPlane, tmp_path: Path):
    node = FakeNode(devices=[FakeGpu("GPU-0", 24 * GiB)])
    file = {"name": "m", "url": "https://hub/m", "size": 5, "sha256": "a" * 64}
    await as_controller(kube, spec(stage="Preparing", files=[file]))
    await as_controller(kube, {"status": {"state": "Preparing"}}, "status")
    probe = Counting(HttpProbe())
    async with (
        running(kube, tmp_path, node, probe) as agent,
        FakeEngine(Behaviour(tokens=4000, token_s=0.01)).serving(ADDRESS, 8080) as engine,
    ):
        await until(lambda: _is(kube, "Verified", "fetch", "state"), "files")
        await as_controller(kube, spec(stage="Reserved", files=[file]))
        await until(lambda: _is(kube, "Admitted", "admission", "state"), "admission")
        pod = await start_pod(kube)
        node.hold(pod, host=GiB, devices={"GPU-0": 7 * GiB})
        await until(lambda: _is(kube, "Ready", "health", "state"), "ready")
        await until(lambda: told(kube, "memory", "devices"), "memory is measured")
        async with httpx.AsyncClient() as client:
            url = f"{engine.url}/v1/chat/completions"
            async with client.stream("POST", url, json={"stream": True}) as answer:
                chunks = answer.aiter_bytes()
                await anext(chunks)
                await until(lambda: _is(kube, 1, "health", "busy"), "busy")
                since = "2026-01-01T00:00:00Z"
                drain = {"reason": "MakeRoom", "since": since, "deadline": since}
                await as_controller(kube, spec(stage="Reserved", files=[file], drain=drain))
                assert await told(kube, "quiet") is None
        await until(lambda: _is(kube, since, "quiet", "drainSeen"), "quiet")
        await _check_owners(kube)
        await until(lambda: _is_all_told(kube, agent), "nothing is left to tell")
        version, writes, looks = await _version(kube), _agent_writes(plane), probe.looks
        await until(lambda: probe.looks > looks + 50, "it is looked at again and again")
        assert (await _version(kube), _agent_writes(plane)) == (version, writes)


async def _is(kube: Kube, want: Any, *path: str) -> bool:
    return bool(await told(kube, *path) == want)


async def _check_owners(kube: Kube) -> None:
    """The agent owns its subtree whole and nothing else; the controller's word stands."""
    runner = await kube.get(RUNNERS, NAME, NAMESPACE)
    assert runner["status"]["state"] == "Preparing"
    owned = {
        entry["manager"]: entry["fieldsV1"]
        for entry in runner["metadata"]["managedFields"]
        if entry.get("subresource") == "status"
    }
    assert list(owned["berth-agent"]) == ["f:status"]
    assert list(owned["berth-agent"]["f:status"]) == ["f:agent"]


async def _is_all_told(kube: Kube, agent: Agent) -> bool:
    """The API server has every figure as it is, not only those of the last quantum."""
    (work,) = agent.works()
    available = agent.site.live.host.memory().available
    inventory = (await kube.get(INVENTORIES, NODE))["status"]
    is_told = await told(kube) == work.status().wire()
    return is_told and inventory["host"]["available"] == available


async def _version(kube: Kube) -> str:
    return str((await kube.get(RUNNERS, NAME, NAMESPACE))["metadata"]["resourceVersion"])


def _agent_writes(plane: ControlPlane) -> int:
    lines = plane.audit_log.read_text().splitlines()
    return sum("fieldManager=berth-agent" in json.loads(line)["requestURI"] for line in lines)


async def test_it_goes_on_after_a_restart_of_the_api_server(
    kube: Kube, plane: ControlPlane, tmp_path: Path
):
    await as_controller(kube, spec())
    node = FakeNode(devices=[FakeGpu("GPU-0", 24 * GiB, foreign=20 * GiB)])
    async with running(kube, tmp_path, node):
        await until(lambda: _is(kube, "Refused", "admission", "state"), "refused")
        await asyncio.to_thread(plane.restart, "kube-apiserver")
        node.devices[0].foreign = 0
        await until(lambda: _is(kube, "Admitted", "admission", "state"), "admitted after all")
        await as_controller(kube, spec(passId="p2"))
        await until(lambda: _is(kube, "p2", "admission", "passId"), "the watch is back")


async def test_what_is_gone_is_not_written(kube: Kube):
    gone: list[Subject] = []
    writer = StatusWriter(kube, gone.append)
    absent = Subject(RUNNERS, "nobody", NAMESPACE)
    writer.put(absent, {"agent": {"epoch": 9}})
    await writer.flush()
    assert gone == [absent]


async def test_the_inventory_belongs_to_its_node(kube: Kube, tmp_path: Path):
    async with running(kube, tmp_path, FakeNode()):
        status = await until(lambda: _status(kube), "the inventory")
    inventory = await kube.get(INVENTORIES, NODE)
    (owner,) = inventory["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Node", NODE)
    assert status["host"]["total"] == 64 * GiB


async def _status(kube: Kube) -> Any:
    return (await kube.get(INVENTORIES, NODE)).get("status")
