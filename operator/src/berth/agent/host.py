"""What has this node, and what do pods on it hold? Memory, disk, CPUs, by /proc and cgroups.

A Protocol, so that tests and fake nodes run the real agent on figures of their own.
"""

import os
import shutil
import signal
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from berth.agent.cgroups import Cgroups, PodFigures
from berth.units import Bytes

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class HostMemory:
    """``available`` is the kernel's MemAvailable: it counts page cache that can be dropped."""

    total: Bytes
    available: Bytes


@dataclass(frozen=True)
class Disk:
    total: Bytes
    free: Bytes


@dataclass(frozen=True)
class Process:
    """A process of the node, by its id in the host's own numbering."""

    pid: int
    name: str
    command: str
    pod_uid: str = ""
    held: Bytes = Bytes(0)
    """Resident memory that it shares with nobody."""


class Host(Protocol):
    """One node. Every call is cheap, blocking, and safe from any thread."""

    def memory(self) -> HostMemory: ...

    def available(self) -> int:
        """Bytes available, as `memory` tells; asked several times a second when memory is short."""
        ...

    def pod(self, uid: str) -> PodFigures | None:
        """What the pod's cgroup holds; None when it has no cgroup (not started, or gone)."""
        ...

    def disk(self) -> Disk:
        """Of the file system below the store."""
        ...

    def boot_id(self) -> str: ...

    def cpus(self) -> int: ...

    def process(self, pid: int) -> Process | None:
        """Who that is; None when it is gone or not visible from here."""
        ...

    def pids(self) -> Iterable[int]:
        """Every process that is visible from here."""
        ...

    def kill_pod(self, uid: str) -> int:
        """SIGKILL to every process of the pod; how many were hit."""
        ...


class MemInfo:
    """MemAvailable, read into one buffer made beforehand: a look must not need what it looks for."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self._buffer = bytearray(4096)

    def available(self) -> int:
        """Bytes. Raises OSError or ValueError where the kernel tells none."""
        self._file.seek(0)
        length = self._file.readinto(self._buffer)
        at = self._buffer.index(b"MemAvailable:", 0, length) + len(b"MemAvailable:")
        return int(self._buffer[at : self._buffer.index(b"kB", at)]) << 10


class RealHost:
    """The node that this process runs on.

    ``proc`` and ``cgroup`` are where the host's own file systems are mounted; process ids are the
    host's, so the agent's pod shares its process namespace.
    """

    def __init__(self, *, store: Path, proc: Path, cgroup: Path) -> None:
        self._store = store
        self._proc = proc
        self._cgroups = Cgroups(cgroup)
        self._gauge = MemInfo(proc / "meminfo")

    def memory(self) -> HostMemory:
        rows = (line.split() for line in (self._proc / "meminfo").read_text().splitlines())
        figures = {row[0]: int(row[1]) * 1024 for row in rows if len(row) >= 2}
        return HostMemory(
            total=Bytes(figures.get("MemTotal:", 0)), available=Bytes(figures["MemAvailable:"])
        )

    def available(self) -> int:
        return self._gauge.available()

    def pod(self, uid: str) -> PodFigures | None:
        figures = self._cgroups.figures(uid)
        if figures is None:
            return None
        return replace(figures, cpu_s=sum(self._cpu_s(pid) for pid in figures.pids))

    def _cpu_s(self, pid: int) -> float:
        """Of one process with all its threads: utime and stime of proc_pid_stat(5), in ticks."""
        try:
            text = (self._proc / str(pid) / "stat").read_text()
        except OSError:
            return 0.0
        # The name in parentheses may hold anything, spaces and parentheses included.
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def disk(self) -> Disk:
        usage = shutil.disk_usage(_nearest(self._store))
        return Disk(total=Bytes(usage.total), free=Bytes(usage.free))

    def boot_id(self) -> str:
        return (self._proc / "sys/kernel/random/boot_id").read_text().strip()

    def cpus(self) -> int:
        return os.cpu_count() or 1

    def process(self, pid: int) -> Process | None:
        folder = self._proc / str(pid)
        try:
            name = (folder / "comm").read_text().strip()
            command = (
                (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
            cgroup = (folder / "cgroup").read_text()
            pages = (folder / "statm").read_text().split()
        except OSError:
            return None
        # proc_pid_statm(5): the second figure is what is resident, the third what of it is shared.
        own = max(0, int(pages[1]) - int(pages[2])) * _PAGE
        uid = pod_uid_of(cgroup)
        return Process(pid, name, command.strip()[:256], pod_uid=uid, held=Bytes(own))

    def pids(self) -> Iterable[int]:
        return [int(entry.name) for entry in os.scandir(self._proc) if entry.name.isdigit()]

    def kill_pod(self, uid: str) -> int:
        figures = self.pod(uid)
        hit = 0
        for pid in figures.pids if figures else ():
            try:
                os.kill(pid, signal.SIGKILL)
                hit += 1
            except (ProcessLookupError, PermissionError):
                continue
        return hit


def pod_uid_of(cgroup: str) -> str:
    """The pod's uid in the text of ``/proc/PID/cgroup``, empty when it is none's.

    The folder is ``pod<uid>`` under cgroupfs naming and ``…-pod<uid with underscores>.slice``
    under systemd's.
    """
    for part in cgroup.replace("\n", "/").split("/"):
        if part.startswith("pod"):
            return part[3:]
        if part.endswith(".slice") and "-pod" in part:
            return part.removesuffix(".slice").rpartition("-pod")[2].replace("_", "-")
    return ""


def _nearest(path: Path) -> Path:
    """The path, or its nearest parent that exists: the store is made on first use."""
    return path if path.exists() or path == path.parent else _nearest(path.parent)
