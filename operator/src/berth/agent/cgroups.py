"""What does the cgroup of a pod hold? Found by the pod's uid under any layout a kubelet uses.

Layouts: cgroup v1 (below ``memory/``) and v2; named by cgroupfs (``kubepods/burstable/podUID``) or
by systemd (``kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_I_D.slice``); below
the root or below a cgroup root of the kubelet's own. Figures: the kernel's
Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from berth.units import Bytes

_SEARCH_DEPTH = 4
"""How many folders above ``kubepods`` a kubelet's own cgroup root may lie."""


@dataclass(frozen=True)
class PodFigures:
    """``held`` leaves out file pages (tmpfs counts as held); ``file`` is those pages.

    ``cpu_s`` is the processor time of its processes so far, None where it is not told.
    """

    held: Bytes
    file: Bytes
    pids: frozenset[int] = frozenset()
    oom_kills: int = 0
    cpu_s: float | None = None


class Cgroups:
    """The cgroups of pods below one mounted root."""

    def __init__(self, root: Path) -> None:
        # v2 has one tree; v1 has one per controller, and memory's is the one that counts here.
        self._tree = root if (root / "cgroup.controllers").exists() else root / "memory"
        self._bases: list[Path] = []
        self._found: dict[str, Path] = {}

    def figures(self, uid: str) -> PodFigures | None:
        """None when the pod has no cgroup."""
        folder = self._folder(uid)
        if folder is None:
            return None
        stat = _flat(folder / "memory.stat")
        used = _number(folder / "memory.current", folder / "memory.usage_in_bytes")
        if used is None:
            return None
        pages = stat.get("total_cache", stat.get("file", 0))
        pages -= stat.get("total_shmem", stat.get("shmem", 0))
        pages = max(0, pages)
        return PodFigures(
            held=Bytes(max(0, used - pages)),
            file=Bytes(pages),
            pids=frozenset(_pids(folder)),
            oom_kills=_oom_kills(folder),
        )

    def _folder(self, uid: str) -> Path | None:
        known = self._found.get(uid)
        if known is not None and known.is_dir():
            return known
        self._found.pop(uid, None)
        found = self._search(uid)
        if found is not None:
            self._found[uid] = found
        return found

    def _search(self, uid: str) -> Path | None:
        for refresh in (False, True):
            if refresh or not self._bases:
                self._bases = list(_bases(self._tree, _SEARCH_DEPTH))
            for base in self._bases:
                for candidate in _candidates(base, uid):
                    if candidate.is_dir():
                        return candidate
        return None


def _candidates(base: Path, uid: str) -> Iterator[Path]:
    """Where the pod's folder is below a ``kubepods`` folder, for the three classes of service."""
    if not base.name.endswith(".slice"):
        yield base / f"pod{uid}"
        yield base / "burstable" / f"pod{uid}"
        yield base / "besteffort" / f"pod{uid}"
        return
    stem, flat = base.name.removesuffix(".slice"), uid.replace("-", "_")
    yield base / f"{stem}-pod{flat}.slice"
    for qos in ("burstable", "besteffort"):
        yield base / f"{stem}-{qos}.slice" / f"{stem}-{qos}-pod{flat}.slice"


def _bases(folder: Path, depth: int) -> Iterator[Path]:
    try:
        children = [Path(entry.path) for entry in os.scandir(folder) if entry.is_dir()]
    except OSError:
        return
    for child in children:
        if child.name.removesuffix(".slice").endswith("kubepods"):
            yield child
        elif depth > 0:
            yield from _bases(child, depth - 1)


def _pids(folder: Path) -> Iterator[int]:
    """Ids of every process of the pod: those of its containers' cgroups included."""
    for where, _, names in os.walk(folder):
        if "cgroup.procs" not in names:
            continue
        try:
            yield from (int(line) for line in (Path(where) / "cgroup.procs").read_text().split())
        except OSError:
            continue  # a container's cgroup that ended meanwhile has no processes


def _oom_kills(folder: Path) -> int:
    """v2 counts below ``memory.events``; v1 has no count that includes the children."""
    return _flat(folder / "memory.events").get("oom_kill", 0)


def _flat(path: Path) -> dict[str, int]:
    """A "flat keyed" file; empty when it is not there."""
    try:
        rows = (line.split() for line in path.read_text().splitlines())
        return {row[0]: int(row[1]) for row in rows if len(row) == 2}
    except OSError:
        return {}


def _number(*paths: Path) -> int | None:
    """The number in the first of the files that is there."""
    for path in paths:
        try:
            return int(path.read_text())
        except (OSError, ValueError):
            continue
    return None
