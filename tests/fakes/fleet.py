"""Who stands in for machines that are not there? One process for every fake node of a cluster.

For each Node with the annotation ``kwok.x-k8s.io/node: fake`` it runs the real agent on a host
that is made up: memory from the Node's capacity, GPUs from the annotation ``fake.berth.dev/gpus``
(``2x24Gi``, ``8Gi,16Gi``), used memory from what the played pods claim. Files are not downloaded,
only said to be there after FAKE_FETCH_SECONDS (environment of this program, 0.2 by default).

``PYTHONPATH=tests python -m fakes.fleet`` with KUBECONFIG set. SIGTERM ends it. Faults are asked
for over HTTP at ``--port``: ``POST /kill/NAMESPACE/POD?code=137&reason=OOMKilled``,
``POST /foreign/NODE?host=BYTES&gpu=BYTES`` (memory that somebody else takes),
``POST /agent/NODE?run=false`` (the node's agent goes away).
"""

import argparse
import asyncio
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from berth.agent.cgroups import PodFigures
from berth.agent.core import Agent
from berth.agent.download import FileRef, Progress
from berth.agent.gpus import Gpu, GpuProcess, GpuSample
from berth.agent.host import Disk, HostMemory, Process
from berth.agent.loans import Loan
from berth.agent.shelf import Blob
from berth.api.meta import ANNOTATION_CLAIM
from berth.kube.cache import raw_cache
from berth.kube.client import Kube, Object
from berth.kube.refs import NODES
from berth.settings import Settings
from berth.units import Bytes, parse_quantity
from fakes.kubelet import FAKE_NODE, FakeKubelet, Played, environment_of

log = logging.getLogger(__name__)
GPUS = "fake.berth.dev/gpus"
DISK = Disk(total=Bytes(4 << 40), free=Bytes(3 << 40))
BASE_USED = 1 << 30
"""What the machine's own daemons hold."""


class FakeHost:
    """A machine whose memory is what its played pods claim."""

    def __init__(self, node: str, total: int, pods: Callable[[], list[Played]]) -> None:
        self._node = node
        self._total = total
        self._pods = pods
        self.foreign = 0

    def available(self) -> int:
        return self.memory().available

    def memory(self) -> HostMemory:
        used = sum(_held(p.pod) for p in self._pods())
        free = self._total - BASE_USED - used - self.foreign
        return HostMemory(total=Bytes(self._total), available=Bytes(max(0, free)))

    def pod(self, uid: str) -> PodFigures | None:
        for played in self._pods():
            if played.pod["metadata"]["uid"] == uid:
                held = Bytes(_held(played.pod))
                return PodFigures(held=held, file=Bytes(0), pids=frozenset({_pid(uid)}))
        return None

    def disk(self) -> Disk:
        return DISK

    def boot_id(self) -> str:
        return f"boot-{self._node}"

    def cpus(self) -> int:
        return 32

    def process(self, pid: int) -> Process | None:
        for played in self._pods():
            uid = played.pod["metadata"]["uid"]
            if _pid(uid) == pid:
                return Process(pid, "llama-server", "llama-server", pod_uid=uid)
        return None

    def kill_pod(self, uid: str) -> int:
        for played in self._pods():
            if played.pod["metadata"]["uid"] == uid:
                played.ended.set()
                return 1
        return 0


class FakeGpus:
    """GPUs whose used memory is what the played pods claim of them."""

    def __init__(self, node: str, sizes: Sequence[int], pods: Callable[[], list[Played]]) -> None:
        self._node = node
        self._sizes = sizes
        self._pods = pods
        self.foreign = 0

    def sample(self) -> GpuSample:
        return GpuSample(
            gpus=tuple(self._gpu(i, size) for i, size in enumerate(self._sizes)), driver="fake"
        )

    def _gpu(self, index: int, size: int) -> Gpu:
        uuid = gpu_uuid(self._node, index)
        held = {
            played.pod["metadata"]["uid"]: device["memory"]
            for played in self._pods()
            for device in _claim(played.pod).get("devices", [])
            if device["device"] == uuid
        }
        return Gpu(
            uuid=uuid,
            index=index,
            name="Fake GPU",
            total=Bytes(size),
            used=Bytes(min(size, sum(held.values()) + self.foreign)),
            compute_capability="9.0",
            processes=tuple(GpuProcess(_pid(uid), Bytes(used)) for uid, used in held.items()),
        )


class FakeFiles:
    """A store that is told files are there a moment after they were asked for."""

    def __init__(self, fetch_s: float) -> None:
        self._fetch_s = fetch_s
        self._blobs: dict[str, int] = {}
        self._runners: set[str] = set()

    async def provide(self, runner: str, files: Sequence[FileRef], progress: Progress) -> Path:
        total = sum(file.size or 0 for file in files)
        if any(file.sha256 not in self._blobs for file in files):
            for tenth in range(11):
                progress(total * tenth // 10, total, total / max(self._fetch_s, 0.01))
                await asyncio.sleep(self._fetch_s / 10)
        self._blobs |= {file.sha256: file.size or 0 for file in files if file.sha256}
        self._runners.add(runner)
        return Path("/models")

    def lend(self, loan: Loan) -> None:
        """Fake pods mount nothing."""

    async def trim(self) -> None:
        """There is no budget."""

    def sweep_sessions(self, models: Collection[str], now: float) -> None:
        """None are saved."""

    def release(self, runner: str) -> None:
        self._runners.discard(runner)

    def held(self) -> list[Blob]:
        return [Blob(sha256, size) for sha256, size in sorted(self._blobs.items())]

    def holders(self) -> list[str]:
        return sorted(self._runners)


class Fleet:
    """The fake nodes of one cluster, found by watching Nodes."""

    def __init__(self, kube: Kube, root: Path, fetch_s: float, claims: Path | None = None) -> None:
        self._kube = kube
        self._root = root
        self._fetch_s = fetch_s
        self._nodes = raw_cache(kube, NODES, changed=self._changed)
        self._agents: dict[str, asyncio.Task[None]] = {}
        self.kubelet = FakeKubelet(kube, time.time, claims)
        self.hosts: dict[str, FakeHost] = {}
        self.gpus: dict[str, FakeGpus] = {}

    async def run(self) -> None:
        """Play until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.kubelet.run())
            group.create_task(self._nodes.run())

    def pods_on(self, node: str) -> list[Played]:
        """The pods that hold memory there."""
        played = self.kubelet.played.values()
        return [p for p in played if p.pod["spec"].get("nodeName") == node and not p.ended.is_set()]

    def _changed(self, name: str, node: Object | None) -> None:
        if node is None:
            self.stop_agent(name)
        elif _is_fake(node) and name not in self.hosts:
            self.start_agent(name)

    def start_agent(self, name: str) -> None:
        """The agent of this node comes up (again); its host keeps what it had."""
        node = self._nodes.get(name)
        if node is None or name in self._agents:
            return
        memory = parse_quantity(node["status"]["capacity"]["memory"])
        sizes = gpu_sizes(node["metadata"].get("annotations", {}).get(GPUS, ""))
        host = self.hosts.setdefault(name, FakeHost(name, memory, lambda: self.pods_on(name)))
        gpus = self.gpus.setdefault(name, FakeGpus(name, sizes, lambda: self.pods_on(name)))
        agent = Agent(
            node=name,
            kube=self._kube,
            host=host,
            gpus=gpus,
            files=FakeFiles(self._fetch_s),
            settings=Settings({**os.environ, "BERTH_HOST_ROOT": "/"}),
            journal=self._root / name / "journal",
        )
        self._agents[name] = asyncio.get_running_loop().create_task(_forever(name, agent))

    def stop_agent(self, name: str) -> None:
        """The agent of this node goes away; its pods stay."""
        task = self._agents.pop(name, None)
        if task is not None:
            task.cancel()


async def _forever(name: str, agent: Agent) -> None:
    try:
        await agent.run()
    except asyncio.CancelledError:
        raise
    except BaseException:
        log.exception("the agent of %s ended", name)


def _is_fake(node: Object) -> bool:
    return bool(node["metadata"].get("annotations", {}).get(FAKE_NODE) == "fake")


def gpu_uuid(node: str, index: int) -> str:
    """A UUID in NVML's form that tells which fake node it is of."""
    return f"GPU-{node.encode().hex()[:8]:0<8}-0000-0000-0000-{index:012x}"


def gpu_sizes(text: str) -> list[int]:
    """Bytes of each GPU of ``2x24Gi`` or ``8Gi,16Gi``."""
    sizes: list[int] = []
    for part in filter(None, text.split(",")):
        count, _, size = part.strip().rpartition("x")
        sizes += [parse_quantity(size)] * int(count or 1)
    return sizes


def _held(pod: Object) -> int:
    """Of the host, by FAKE_HOST_SHARE of the need that the Runner was made with."""
    share = float(environment_of(pod).get("FAKE_HOST_SHARE") or 1)
    return int(_claim(pod).get("host", 0) * share)


def _claim(pod: Object) -> dict[str, Any]:
    claim: dict[str, Any] = json.loads(pod["metadata"]["annotations"].get(ANNOTATION_CLAIM, "{}"))
    return claim


def _pid(uid: str) -> int:
    return 100_000 + int(uid.replace("-", "")[:6], 16)


# -- faults -----------------------------------------------------------------------------------


def _app(fleet: Fleet) -> web.Application:
    async def kill(request: web.Request) -> web.Response:
        key = f"{request.match_info['namespace']}/{request.match_info['pod']}"
        if key not in fleet.kubelet.played:
            raise web.HTTPNotFound
        code, reason = request.query.get("code", "137"), request.query.get("reason", "Error")
        fleet.kubelet.kill(key, exit_code=int(code), reason=reason)
        return web.json_response({})

    async def foreign(request: web.Request) -> web.Response:
        node = request.match_info["node"]
        fleet.hosts[node].foreign = int(request.query.get("host", "0"))
        fleet.gpus[node].foreign = int(request.query.get("gpu", "0"))
        return web.json_response({})

    async def agent(request: web.Request) -> web.Response:
        act = fleet.stop_agent if request.query.get("run") == "false" else fleet.start_agent
        act(request.match_info["node"])
        return web.json_response({})

    app = web.Application()
    app.router.add_post("/kill/{namespace}/{pod}", kill)
    app.router.add_post("/foreign/{node}", foreign)
    app.router.add_post("/agent/{node}", agent)
    return app


async def _main(port: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    root = Path(Settings().text("STORE_ROOT"))
    async with await Kube.connect() as kube:
        claims = os.environ.get("FAKE_CLAIMS")
        fetch_s = float(os.environ.get("FAKE_FETCH_SECONDS", "0.2"))
        fleet = Fleet(kube, root, fetch_s, Path(claims) if claims else None)
        runner = web.AppRunner(_app(fleet), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        task = asyncio.create_task(fleet.run())
        ended = asyncio.create_task(stop.wait())
        await asyncio.wait({task, ended}, return_when=asyncio.FIRST_COMPLETED)
        task.cancel()
        await runner.cleanup()


def main() -> None:
    """Play the fake nodes of the cluster that KUBECONFIG names."""
    parser = argparse.ArgumentParser(prog="fakes.fleet", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="where faults are asked for")
    logging.basicConfig(level="INFO", format="%(levelname)s: %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    asyncio.run(_main(parser.parse_args().port))


if __name__ == "__main__":
    main()
