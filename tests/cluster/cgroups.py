"""Where does a node account for its pods, on hosts with cgroup version 1 or 2?

Under one cgroup of our own in each hierarchy, so that what runs in it is known to be ours and the
whole can be removed.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cluster.problem import Problem

MOUNT = Path("/sys/fs/cgroup")
NEEDED = ("cpu", "memory", "cpuset", "pids")


def hierarchies() -> list[Path]:
    """The root of every hierarchy that the kubelet may use."""
    if (MOUNT / "cgroup.controllers").exists():
        return [MOUNT]
    # Links such as `cpu` → `cpu,cpuacct` would be met twice.
    return [path for path in sorted(MOUNT.iterdir()) if path.is_dir() and not path.is_symlink()]


def require() -> None:
    roots = hierarchies() if MOUNT.is_dir() else []
    if roots == [MOUNT]:
        have = set((MOUNT / "cgroup.controllers").read_text().split())
    else:
        have = {name for root in roots for name in root.name.split(",")}
    missing = [name for name in NEEDED if name not in have]
    if missing:
        raise Problem(
            f"the cgroup controllers {', '.join(missing)} are missing below {MOUNT}",
            todo="run on a host or in a container with its cgroups mounted writable",
        )
    if not os.access(roots[0], os.W_OK):
        raise Problem(f"{roots[0]} is read-only", todo="mount the cgroups writable")


def create(name: str) -> None:
    for root in hierarchies():
        group = root / name
        if (root / "cgroup.subtree_control").exists() and root == MOUNT:
            _enable_controllers(root)
            group.mkdir(exist_ok=True)
            _enable_controllers(group)
            continue
        group.mkdir(exist_ok=True)
        # Version 1 gives a new cpuset no processor and no memory, and nothing can run in it.
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (group / setting).exists() and not (group / setting).read_text().strip():
                (group / setting).write_text((root / setting).read_text())


def remove(name: str, *, deadline_s: float = 20) -> None:
    """Kills what still runs in it and removes it with everything below; raises Problem in vain."""
    ends = time.monotonic() + deadline_s
    while groups(name):
        for pid in members(name):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for group in groups(name):
            with suppress(OSError):
                group.rmdir()
        if time.monotonic() > ends:
            raise Problem(
                f"the cgroups {name} could not be removed; still in them: {sorted(members(name))}",
                todo="see what these processes wait for, then run `make down` again",
            )
        time.sleep(0.02)


def groups(name: str) -> list[Path]:
    """Every cgroup of ours, the deepest first."""
    tops = [root / name for root in hierarchies() if (root / name).is_dir()]
    return [group for top in tops for group in [*_below(top), top]]


def members(name: str) -> set[int]:
    pids: set[int] = set()
    for group in groups(name):
        with suppress(OSError):
            pids |= {int(pid) for pid in (group / "cgroup.procs").read_text().split()}
    return pids


def _below(top: Path) -> Iterator[Path]:
    for folder, names, _ in os.walk(top, topdown=False):
        yield from (Path(folder) / name for name in names)


def _enable_controllers(group: Path) -> None:
    for controller in (group / "cgroup.controllers").read_text().split():
        with suppress(OSError):
            (group / "cgroup.subtree_control").write_text(f"+{controller}")
