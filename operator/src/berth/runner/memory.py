"""How much host memory can still be had here, and how often did the kernel kill for lack of it?

Formats: ``/proc/meminfo`` and the cgroup files of v2 (``memory.max``, ``memory.current``,
``memory.stat``, ``memory.events``) and v1 (``memory.limit_in_bytes``, …), see the kernel's
Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from pathlib import Path

UNLIMITED = 1 << 60
"""Cgroup v1 says "no limit" by a number near 2**63; anything above an exbibyte is none."""


PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


def available_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Bytes that a new process could take: the smaller of the machine's and the cgroup's room."""
    machine = _meminfo(proc / "meminfo").get("MemAvailable", 0)
    room = cgroup_room(proc, cgroup)
    return machine if room is None else min(machine, room)


def cgroup_room(proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """Bytes left below the limit, counting clean file pages as free; None without a limit."""
    v2, v1 = _own_folders(proc, cgroup)
    for folder, limit_name, used_name, file_key in (
        (v2, "memory.max", "memory.current", "file"),
        (v1, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
    ):
        limit = _number(folder / limit_name)
        if limit is None or limit >= UNLIMITED:
            continue
        stat = _flat(folder / "memory.stat")
        shared = stat.get("shmem", stat.get("total_shmem", 0))
        reclaimable = max(0, stat.get(file_key, 0) - shared)
        return max(0, limit - (_number(folder / used_name) or 0) + reclaimable)
    return None


def oom_kills(proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """How many processes of this cgroup the kernel has killed for memory; None when not told."""
    v2, v1 = _own_folders(proc, cgroup)
    for path in (v2 / "memory.events", v1 / "memory.oom_control"):
        count = _flat(path).get("oom_kill")
        if count is not None:
            return count
    return None


def _own_folders(proc: Path, cgroup: Path) -> tuple[Path, Path]:
    """This process's memory cgroup under v2 and under v1.

    A container sees its own cgroup as the root of the mount, whatever path ``/proc/self/cgroup``
    names; only outside of one does that path exist below the mount.
    """
    paths = {"": "", "memory": ""}
    try:
        rows = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        rows = []
    for _, controllers, path in (row.split(":", 2) for row in rows):
        paths |= {name: path.strip("/") for name in controllers.split(",") if name in paths}
    own = (cgroup / paths[""], cgroup / "memory" / paths["memory"])
    return (own[0] if own[0].is_dir() else cgroup, own[1] if own[1].is_dir() else cgroup / "memory")


def _meminfo(path: Path) -> dict[str, int]:
    """Bytes by name, from lines such as ``MemAvailable:   123 kB``."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) >= 2}


def _flat(path: Path) -> dict[str, int]:
    """A "flat keyed" cgroup file; empty when it is not there."""
    try:
        rows = (line.split() for line in path.read_text().splitlines())
        return {row[0]: int(row[1]) for row in rows if len(row) == 2}
    except OSError:
        return {}


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return None if text == "max" else int(text)
