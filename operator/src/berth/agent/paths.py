"""What is in the host paths that Models name? Only the node can see them, and only where allowed."""

import asyncio
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from berth.api.inventory import InspectedPath
from berth.api.model import FactsStatus, FileFact, Model
from berth.headers import HeaderError, HeaderRequest, PathSource
from berth.headers.pool import HeaderPool
from berth.reasons import Reason

log = logging.getLogger(__name__)
LIMIT = 32
_RECORDS_LIMIT = 160 << 10
"""Bytes of facts in one inventory, so that the object stays under 256 KiB."""
_NAMESPACE = "host paths"


def path_of(model: Model) -> str:
    """The host path of a Model's file or folder, as the node names it; empty: it has none."""
    source = model.spec.source.path
    if source is None or source.host_path is None:
        return ""
    return os.path.normpath(f"{source.host_path}/{source.path.lstrip('/')}")


def is_below(path: str, prefixes: Iterable[str]) -> bool:
    """Whether the path is one of the prefixes or below one, name by name."""
    parts = Path(path).parts
    return any(
        parts[: len(wanted)] == wanted
        for prefix in prefixes
        if (wanted := Path(os.path.normpath(prefix)).parts)
    )


def resolve(path: str, prefixes: Iterable[str], root: str) -> Path | None:
    """Where the path lies on this machine, links followed; None when that is outside the prefixes.

    ``root`` is where the host's files are mounted: a link to an absolute path leads out of it, and
    is refused rather than followed to a file of the agent's own.
    """
    allowed = list(prefixes)
    if not path.startswith("/") or not is_below(path, allowed):
        return None
    real = os.path.realpath(root + path)
    homes = [os.path.realpath(root + prefix) for prefix in allowed]
    return Path(real) if is_below(real, homes) else None


@dataclass(frozen=True)
class _Known:
    """What was found, and by which stamps of the files it still holds."""

    stamp: tuple[tuple[str, int, int], ...]
    found: InspectedPath


class Paths:
    """Facts of the host paths that Models name, read again when a file changes."""

    def __init__(self, root: str, pool: HeaderPool | None = None) -> None:
        self._root = root
        self._pool = pool or HeaderPool(total=1)
        self._known: dict[str, _Known] = {}

    async def inspect(self, models: Iterable[Model], allowed: Iterable[str]) -> list[InspectedPath]:
        """One entry for each path, by path; at most 32."""
        prefixes = list(allowed)
        wanted = sorted({path for model in models if (path := path_of(model))})[:LIMIT]
        found = [await self._inspect(path, prefixes) for path in wanted]
        self._known = {path: entry for path, entry in self._known.items() if path in wanted}
        return _within_limit(found)

    async def _inspect(self, path: str, prefixes: list[str]) -> InspectedPath:
        # Off the event loop: a path may lie on a server that does not answer.
        real = await asyncio.to_thread(resolve, path, prefixes, self._root)
        if real is None:
            return InspectedPath(
                path=path,
                reason=Reason.UNTRUSTED_PATH,
                message=f"{path} is not within hostPaths of this node's Residency, or leads out of it",
            )
        stamp = await asyncio.to_thread(_stamp, real)
        known = self._known.get(path)
        if known is not None and known.stamp == stamp:
            return known.found
        found = await self._read(path, real)
        self._known[path] = _Known(stamp, found)
        return found

    async def _read(self, path: str, real: Path) -> InspectedPath:
        request = HeaderRequest(source=PathSource(str(real)), namespace=_NAMESPACE)
        try:
            result = await self._pool.read(request)
        except HeaderError as err:
            log.warning("host path %s: %s: %s", path, err.reason, err.message)
            return InspectedPath(path=path, reason=str(err.reason), message=err.message[:1024])
        files = [FileFact(name=file.path, size=file.size) for file in result.files]
        facts = FactsStatus.saying(
            result.facts, files=files, digest=result.digest, revision=result.revision
        )
        return InspectedPath(path=path, facts=facts)


def _within_limit(found: list[InspectedPath]) -> list[InspectedPath]:
    """The first ones whole; what would make the object too large says so instead."""
    left, kept = _RECORDS_LIMIT, []
    for entry in found:
        size = len(entry.facts.record) if entry.facts else 0
        if size > left:
            entry = InspectedPath(
                path=entry.path,
                reason=Reason.UNSUPPORTED,
                message="too many host paths on one node: their facts do not fit the inventory",
            )
        else:
            left -= size
        kept.append(entry)
    return kept


def _stamp(real: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, size and mtime of the file, or of every file in the folder."""
    try:
        entries = sorted(real.parent.iterdir() if real.is_file() else real.iterdir())
        return tuple((e.name, (s := e.stat()).st_size, s.st_mtime_ns) for e in entries)
    except OSError:
        return ()
