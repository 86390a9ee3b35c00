"""How much host memory can still be had here, and how often did the kernel kill for lack of it?

Formats: ``/proc/meminfo`` and the cgroup files of v2 (``memory.max``, ``memory.current``,
``memory.stat``, ``memory.events``) and v1 (``memory.limit_in_bytes``, …), see the kernel's
Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from pathlib import Path

UNLIMITED = 1 << 60
"""Cgroup v1 says "no limit" by a number near 2**63; anything above an exbibyte is none."""


def available_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that a new process could take: the smaller of the machine's and the cgroup's room."""
    machine = _meminfo(proc / "meminfo").get("MemAvailable", 0)
    room = cgroup_room(cgroup)
    return machine if room is None else min(machine, room)


def cgroup_room(cgroup: Path) -> int | None:
    """Bytes left below the limit, counting clean file pages as free; None without a limit."""
    for folder, limit_name, used_name, file_key in (
        (cgroup, "memory.max", "memory.current", "file"),
        (cgroup / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
    ):
        limit = _number(folder / limit_name)
        if limit is None or limit >= UNLIMITED:
            continue
        stat = _flat(folder / "memory.stat")
        shared = stat.get("shmem", stat.get("total_shmem", 0))
        reclaimable = max(0, stat.get(file_key, 0) - shared)
        return max(0, limit - (_number(folder / used_name) or 0) + reclaimable)
    return None


def oom_kills(cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """How many processes of this cgroup the kernel has killed for memory; None when not told."""
    for path in (cgroup / "memory.events", cgroup / "memory" / "memory.oom_control"):
        count = _flat(path).get("oom_kill")
        if count is not None:
            return count
    return None


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
