"""What would a node be? Its memory, GPUs and files as a test chooses them, for the real agent.

node = FakeNode(memory=64 * GiB, gpus=[FakeGpu("GPU-0", 24 * GiB)])
agent = Agent(node="a", kube=kube, host=node, gpus=node, files=FakeFiles(), settings=…)
node.hold("pod-uid", host=2 * GiB, devices={"GPU-0": 8 * GiB})   # as if the pod ran
node.free("pod-uid")
"""

import asyncio
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from berth.agent.cgroups import PodFigures
from berth.agent.download import FileRef, Progress
from berth.agent.fetch_errors import FetchError
from berth.agent.gpus import Gpu, GpuProcess, GpuSample
from berth.agent.host import Disk, HostMemory, Process
from berth.agent.loans import Loan
from berth.agent.shelf import Blob
from berth.units import Bytes, GiB

_PIDS = itertools.count(100_000)


@dataclass
class FakeGpu:
    """``foreign`` is used by others than pods of ours. ``total`` 0: a unified board."""

    uuid: str
    total: int = 24 * GiB
    foreign: int = 0
    name: str = "Fake GPU"
    tells: bool = True


@dataclass
class Holding:
    """What one pod holds."""

    host: int = 0
    file: int = 0
    devices: Mapping[str, int] = field(default_factory=dict)
    pid: int = field(default_factory=lambda: next(_PIDS))


@dataclass
class FakeNode:
    """A Host and its Gpus in one."""

    memory_total: int = 64 * GiB
    foreign: int = 4 * GiB
    """Host memory used by others than pods of ours."""
    devices: list[FakeGpu] = field(default_factory=list)
    disk_free: int = 500 * GiB
    cores: int = 8
    pods: dict[str, Holding] = field(default_factory=dict)
    killed: list[str] = field(default_factory=list)
    others: list[Process] = field(default_factory=list)
    """Processes that are no pod's of ours."""

    def hold(
        self,
        pod_uid: str,
        *,
        host: int = 0,
        devices: Mapping[str, int] | None = None,
        file: int = 0,
    ) -> None:
        """The pod's processes hold this much from now on."""
        before = self.pods.get(pod_uid, Holding())
        self.pods[pod_uid] = Holding(host, file, dict(devices or {}), before.pid)

    def free(self, pod_uid: str) -> None:
        """Its processes have ended."""
        self.pods.pop(pod_uid, None)

    # -- Host ----------------------------------------------------------------------------------

    def available(self) -> int:
        return self.memory().available

    def memory(self) -> HostMemory:
        shared = {gpu.uuid for gpu in self.devices if not gpu.total}
        used = self.foreign + sum(pod.host for pod in self.pods.values())
        used += sum(
            size for pod in self.pods.values() for u, size in pod.devices.items() if u in shared
        )
        return HostMemory(Bytes(self.memory_total), Bytes(max(0, self.memory_total - used)))

    def pod(self, uid: str) -> PodFigures | None:
        held = self.pods.get(uid)
        if held is None:
            return None
        return PodFigures(Bytes(held.host), Bytes(held.file), frozenset({held.pid}))

    def disk(self) -> Disk:
        return Disk(Bytes(2 * self.disk_free), Bytes(self.disk_free))

    def boot_id(self) -> str:
        return "fake-boot"

    def cpus(self) -> int:
        return self.cores

    def process(self, pid: int) -> Process | None:
        owner = next((uid for uid, pod in self.pods.items() if pod.pid == pid), None)
        if owner is not None:
            return Process(pid, "llama-server", "llama-server -m m", pod_uid=owner)
        return next((other for other in self.others if other.pid == pid), None)

    def pids(self) -> list[int]:
        return [pod.pid for pod in self.pods.values()] + [other.pid for other in self.others]

    def kill_pod(self, uid: str) -> int:
        self.killed.append(uid)
        return 1 if self.pods.pop(uid, None) is not None else 0

    # -- Gpus ----------------------------------------------------------------------------------

    def sample(self) -> GpuSample:
        gpus = tuple(self._gpu(index, gpu) for index, gpu in enumerate(self.devices))
        return GpuSample(gpus=gpus, driver="570.00" if gpus else "")

    def _gpu(self, index: int, gpu: FakeGpu) -> Gpu:
        processes = tuple(
            GpuProcess(pod.pid, Bytes(pod.devices[gpu.uuid]) if gpu.tells else None)
            for pod in self.pods.values()
            if gpu.uuid in pod.devices
        )
        if not gpu.total:
            return Gpu(gpu.uuid, index, gpu.name, unified=True, processes=processes)
        used = gpu.foreign + sum(pod.devices.get(gpu.uuid, 0) for pod in self.pods.values())
        return Gpu(
            gpu.uuid,
            index,
            gpu.name,
            total=Bytes(gpu.total),
            used=Bytes(min(used, gpu.total)),
            compute_capability="9.0",
            processes=processes,
        )


@dataclass
class FakeFiles:
    """Files that arrive without a download. ``fetch_s`` for each file not here yet."""

    fetch_s: float = 0.0
    fails: FetchError | None = None
    blobs: dict[str, int] = field(default_factory=dict)
    runners: dict[str, list[str]] = field(default_factory=dict)
    asked: list[FileRef] = field(default_factory=list)
    loans: dict[str, Loan] = field(default_factory=dict)
    released: list[str] = field(default_factory=list)

    async def provide(self, runner: str, files: Sequence[FileRef], progress: Progress) -> Path:
        self.asked += files
        total = sum(file.size or 0 for file in files)
        done = 0
        for file in files:
            digest = file.sha256 or file.url
            if digest not in self.blobs:
                progress(done, total, 0.0)
                await asyncio.sleep(self.fetch_s)
                if self.fails is not None:
                    raise self.fails
            self.blobs[digest] = file.size or 0
            done += file.size or 0
            progress(done, total, 1e9)
        self.runners[runner] = [file.name for file in files]
        return Path("/nowhere") / runner

    def lend(self, loan: Loan) -> None:
        self.loans[loan.runner] = loan

    async def trim(self) -> None:
        """There is no budget."""

    def sweep_sessions(self, models: Collection[str], now: float) -> None:
        """None are saved."""

    def release(self, runner: str) -> None:
        self.loans.pop(runner, None)
        self.runners.pop(runner, None)
        self.released.append(runner)

    def held(self) -> list[Blob]:
        return [Blob(digest, size) for digest, size in sorted(self.blobs.items())]

    def holders(self) -> list[str]:
        return sorted(self.runners)
