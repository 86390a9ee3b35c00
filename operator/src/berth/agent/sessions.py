"""Which saved sessions lie on this node, and when do they go?

::

    STORE/sessions/MODEL-UID/KEY/   one runner's; `berth.manifests.sessions` makes the name

They hold what people have said to a model: the folders above cannot be entered by anybody but root,
and the innermost one is seen by a pod only through its volume.
"""

import logging
import os
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from berth.units import Bytes, show_bytes

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Kept:
    """One runner's folder: when it was last written (s since the epoch), and its bytes."""

    path: Path
    name: str
    written: float
    size: int


class SessionShelf:
    """The sessions of one node. ``age_s``: how long after their last save they are kept."""

    def __init__(self, root: Path, *, age_s: float, budget: Bytes) -> None:
        self._root = root / "sessions"
        self._age_s, self._budget = age_s, budget

    def open(self, name: str) -> Path:
        """Make the folder of this name, which a runner of any user may write to."""
        model, _, key = name.partition("/")
        if not model or not key or "/" in key or model.startswith(".") or key.startswith("."):
            raise ValueError(f"{name!r} is not MODEL/KEY")
        folder = self._root / model / key
        folder.mkdir(parents=True, exist_ok=True)
        # Not by mkdir's own mode, which the umask of this process would lessen.
        for path, mode in ((self._root, 0o700), (self._root / model, 0o711), (folder, 0o777)):
            path.chmod(mode)
        os.utime(folder)
        return folder

    def sweep(self, models: Collection[str], used: Collection[str], now: float) -> list[str]:
        """Remove what nobody can use any more, except what is in use; gives the names.

        1. Of Models (by uid) that are gone. 2. Older than the age. 3. The oldest beyond the budget.
        """
        kept = [entry for entry in self._all() if entry.name not in used]
        gone = [entry for entry in kept if not self._is_wanted(entry, models, now)]
        kept = sorted((e for e in kept if e not in gone), key=lambda entry: entry.written)
        room = self._budget - sum(e.size for e in self._all() if e not in gone)
        for entry in kept:
            if room >= 0:
                break
            gone.append(entry)
            room += entry.size
        for entry in gone:
            shutil.rmtree(entry.path, ignore_errors=True)
            log.info("sessions %s removed (%s)", entry.name, show_bytes(Bytes(entry.size)))
        self._drop_empty()
        return [entry.name for entry in gone]

    def _is_wanted(self, entry: _Kept, models: Collection[str], now: float) -> bool:
        model = entry.name.partition("/")[0]
        return model in models and now - entry.written < self._age_s

    def _all(self) -> Iterator[_Kept]:
        for path in sorted(self._root.glob("*/*")):
            try:
                stats = [path.stat(), *(file.stat() for file in path.iterdir())]
            except OSError:
                continue  # being removed by its model's end, or by its runner
            name = f"{path.parent.name}/{path.name}"
            yield _Kept(
                path,
                name,
                max(stat.st_mtime for stat in stats),
                sum(stat.st_size for stat in stats[1:]),
            )

    def _drop_empty(self) -> None:
        for folder in self._root.glob("*"):
            try:
                folder.rmdir()
            except OSError:
                continue  # somebody's sessions are in it
