"""Where are things kept that are dear to make and depend only on their inputs?

Outside the checkout, so that a fresh clone on the same machine finds them. Every entry's name
carries a hash of what it was made from; nothing here is ever changed in place.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.problem import Problem


def root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "berth"


def digest(*parts: str | bytes | Path) -> str:
    """16 hex digits over strings and over files' contents; the same parts give the same digest."""
    whole = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            data = part.read_bytes()
        else:
            data = part if isinstance(part, bytes) else part.encode()
        whole.update(len(data).to_bytes(8, "big"))
        whole.update(data)
    return whole.hexdigest()[:16]


def tree_digest(*folders: Path) -> str:
    """A digest over the names and contents of every file below the folders."""
    parts: list[str | Path] = []
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                parts += [str(path.relative_to(folder)), path]
    return digest(*parts)


@contextmanager
def locked(name: str) -> Iterator[None]:
    """One process at a time, so that parallel test workers never make the same entry twice."""
    lock = root() / "locks" / name
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def entry(kind: str, name: str, *, make: Callable[[Path], None]) -> Path:
    """The path of an entry, made first by `make` (which writes the file it is given) if absent."""
    path = root() / kind / name
    if path.exists():
        return path
    with locked(f"{kind}-{name}"):
        if path.exists():
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.parent / f".{name}.{os.getpid()}"
        try:
            make(draft)
            draft.replace(path)
        finally:
            discard(draft)
    return path


def discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def require_space(folder: Path, *, needed: int, purpose: str) -> None:
    """Raises Problem unless `needed` bytes are free below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise Problem(
            f"{purpose} needs {needed >> 30} GiB of disk, and {folder} has {free / (1 << 30):.1f} GiB free",
            todo="free some space, or point XDG_CACHE_HOME at a larger disk",
        )
