"""Does ``berth agent`` work as a program, on this machine's own memory and disk?"""

import asyncio
import base64
import contextlib
import hashlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.places import INVENTORIES, NAMESPACE, NODE, RUNNERS
from agent.world import runner_object
from berth.kube.client import ApiError, Kube
from berth.kube.refs import SECRETS
from cluster import ports
from cluster.controlplane import ControlPlane
from hub import Hub

pytestmark = pytest.mark.api
NAME = "llama-0"
CONTENT = os.urandom(1 << 20) * 8
SHA = hashlib.sha256(CONTENT).hexdigest()
DEADLINE_S = 60.0


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub() as found:
        found.commit("org/gated", {"m.gguf": CONTENT}, gated=True, tokens={"right"})
        yield found


class Program:
    """The agent as a process of its own."""

    def __init__(self, plane: ControlPlane, store: Path, hub: Hub) -> None:
        self.port = ports.free(1)[0]
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(plane.kubeconfig),
            "BERTH_NODE_NAME": NODE,
            "BERTH_STORE_ROOT": str(store),
            "BERTH_HEALTH_PORT": str(self.port),
            "BERTH_HF_ENDPOINT": hub.url,
            "BERTH_SOURCE_ALLOW": "127.0.0.0/8",
            "BERTH_DISK_RESERVE": "1Mi",
        }

    @contextlib.asynccontextmanager
    async def running(self, end: int = signal.SIGTERM) -> AsyncIterator[asyncio.subprocess.Process]:
        """The process while the block lasts, then ended by this signal."""
        process = await asyncio.create_subprocess_exec(
            *(str(Path(sys.executable).with_name("berth")), "agent"), env=self._environment
        )
        try:
            yield process
            process.send_signal(end)
            async with asyncio.timeout(20):
                await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def ask(self, path: str) -> int:
        async with httpx.AsyncClient(trust_env=False) as client:
            try:
                return (await client.get(f"http://127.0.0.1:{self.port}{path}")).status_code
            except httpx.TransportError:
                return 0


async def until(true: Callable[[], Awaitable[Any]], what: str) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not await true():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {DEADLINE_S} s: {what}") from None


async def test_a_gated_file_arrives_although_the_agent_is_killed_on_the_way(
    kube: Kube, plane: ControlPlane, hub: Hub, tmp_path: Path
):
    secret = {"data": {"token": base64.b64encode(b"right").decode()}}
    await kube.apply(SECRETS, "hub", secret, manager="tests", namespace=NAMESPACE)
    url = hub.resolve_url("org/gated", "m.gguf")
    file = {"name": "m.gguf", "url": url, "size": len(CONTENT), "sha256": SHA}
    runner = runner_object(NAME, stage="Preparing", files=[file], tokenSecretRef={"name": "hub"})
    await kube.apply(
        RUNNERS, NAME, {"spec": runner["spec"]}, manager="berth-controller", namespace=NAMESPACE
    )

    async def fetch(state: str) -> bool:
        status = (await kube.get(RUNNERS, NAME, NAMESPACE)).get("status", {})
        return bool(status.get("agent", {}).get("fetch", {}).get("state") == state)

    program = Program(plane, tmp_path, hub)
    hub.faults.set({"rate": 1 << 20})
    async with program.running(end=signal.SIGKILL):
        await until(lambda: fetch("Fetching"), "it fetches")
    hub.faults.set({"rate": 0})
    async with program.running() as process:
        await until(lambda: fetch("Verified"), "it is there after all")
        assert await program.ask("/readyz") == 200
        uid = (await kube.get(RUNNERS, NAME, NAMESPACE))["metadata"]["uid"]
        link = tmp_path / "runners" / uid / "m.gguf"
        assert hashlib.sha256(link.read_bytes()).hexdigest() == SHA
        await kube.delete(RUNNERS, NAME, NAMESPACE)
        await until(lambda: _absent(link), "the links go with the runner")
        assert (tmp_path / "blobs" / "sha256" / SHA).exists()
    assert process.returncode == 0


async def _absent(path: Path) -> bool:
    return not path.exists()


async def test_it_shows_this_machine(kube: Kube, plane: ControlPlane, hub: Hub, tmp_path: Path):
    async def inventory() -> Any:
        try:
            return (await kube.get(INVENTORIES, NODE)).get("status")
        except ApiError:
            return None

    async with Program(plane, tmp_path, hub).running() as process:
        await until(inventory, "the inventory")
        status = await inventory()
    assert status["cpus"] == os.cpu_count()
    assert 0 < status["host"]["available"] <= status["host"]["total"]
    assert 0 < status["diskFree"] <= status["diskTotal"]
    assert process.returncode == 0
