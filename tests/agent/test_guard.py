"""Does the guard end a load before the kernel does, in a memory cgroup that really runs short?"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.world import World
from berth.agent.host import HostMemory, RealHost
from berth.units import Bytes, MiB
from fakes.node import FakeGpu

LIMIT = 192 * MiB
THRESHOLD = 64 * MiB
V1 = Path("/sys/fs/cgroup/memory")

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not V1.is_dir(), reason="needs root and a memory controller of cgroup v1"
)

LOAD = """
import sys, time
kept = []
for _ in range(1000):
    kept.append(bytearray(b"x") * (4 << 20))
    print(len(kept), flush=True)
    time.sleep(0.02)
"""
"""Takes 4 MiB every 20 ms, as a load does, and never stops by itself."""


@dataclass(frozen=True)
class Board:
    """A memory cgroup with a limit, as if it were a whole board; a pod's cgroup lies below it."""

    folder: Path

    def pod(self, uid: str) -> Path:
        path = self.folder / "kubepods" / f"pod{uid}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def available(self) -> int:
        used = int((self.folder / "memory.usage_in_bytes").read_text())
        return int((self.folder / "memory.limit_in_bytes").read_text()) - used

    def oom_kills(self) -> int:
        rows = dict(
            line.split()
            for path in self.folder.rglob("memory.oom_control")
            for line in path.read_text().splitlines()
        )
        return int(rows.get("oom_kill", 0))


class BoardHost(RealHost):
    """The real host, but for its memory: that is the board's."""

    def __init__(self, board: Board, store: Path) -> None:
        super().__init__(store=store, proc=Path("/proc"), cgroup=V1.parent)
        self._board = board

    def memory(self) -> HostMemory:
        return HostMemory(Bytes(LIMIT), Bytes(self.available()))

    def available(self) -> int:
        return self._board.available()


@pytest.fixture
def board() -> Iterator[Board]:
    folder = V1 / f"berth-test-{os.getpid()}"
    folder.mkdir()
    (folder / "memory.use_hierarchy").write_text("1")
    (folder / "memory.limit_in_bytes").write_text(str(LIMIT))
    yield Board(folder)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            _remove(path)
    _remove(folder)


def _remove(folder: Path) -> None:
    """A group is busy for a moment after its last process has ended."""
    end = time.monotonic() + 20
    while True:
        try:
            folder.rmdir()
            return
        except OSError:
            assert time.monotonic() < end, f"{folder} is still in use"
            time.sleep(0.05)


def start(board: Board, pod: str) -> "subprocess.Popen[str]":
    """A process that is in the pod's cgroup from its first page on."""
    procs = board.pod(pod) / "cgroup.procs"
    enter = f"import os; open({str(procs)!r}, 'w').write(str(os.getpid()))\n"
    return subprocess.Popen([sys.executable, "-c", enter + LOAD], stdout=subprocess.PIPE, text=True)


async def ended(process: "subprocess.Popen[str]") -> int:
    """Its status, with all that it has said read."""
    said, _ = await asyncio.to_thread(process.communicate)
    assert said
    return process.returncode


async def test_without_a_guard_the_kernel_kills(board: Board):
    """The load really runs the board short: what the guard prevents happens without it."""
    assert await ended(start(board, "p")) == -signal.SIGKILL
    assert board.oom_kills() >= 1


async def test_the_guard_ends_the_load_before_the_kernel_must(board: Board, tmp_path: Path):
    world = World(tmp_path)
    world.node.devices = [FakeGpu("GPU-0", 0)]
    world.policy(host={"guard": f"{THRESHOLD >> 20}Mi"})
    world.runner("loading", claim={"host": LIMIT})
    world.host = BoardHost(board, tmp_path)
    async with world.agent():
        pod = world.pod("loading", ip="10.0.0.2")
        process = start(board, pod)
        async with asyncio.timeout(60):
            assert await ended(process) == -signal.SIGKILL
        await world.until(lambda: world.inventory().guard_kills == 1, "it is counted")
        await world.until(lambda: world.events("NoMemory"), "an Event says so")
    assert board.oom_kills() == 0
    lines = (tmp_path / "journal" / "journal.jsonl").read_text().splitlines()
    (noted,) = [row for row in map(json.loads, lines) if row["kind"] == "guard"]
    assert noted["runner"].endswith("/loading")
    assert noted["available"] < THRESHOLD
    assert noted["at"] <= world.events("NoMemory")[0]["eventTime"]
