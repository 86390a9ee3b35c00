"""What has arrived of a file so far? A partial file and a small JSON beside it, on disk.

Safe at every byte: the file only grows, its length is what is here, and the JSON says of which
source's version. Whatever is wrong with either is found by the hash at the end.
"""

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from berth.agent.answer import Have

BUFFER = 1 << 20
"""Bytes gathered before a write: the most that a kill can lose."""
_READ = 4 << 20
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
T = TypeVar("T")


class Partial:
    """One file on its way. Not shared: one download owns it."""

    def __init__(self, path: Path, *, needs_proof: bool) -> None:
        """``needs_proof``: no hash will judge the result, so only a part that is certainly of one
        version of the source, and certainly reached the disk, is kept."""
        self.path = path
        self._note = path.with_name(path.name + ".json")
        self._needs_proof = needs_proof
        self._buffer = bytearray()
        self._digest = hashlib.sha256()
        self.done = 0
        self.etag: str | None = None

    async def open(self) -> None:
        """Take up what is here, hashing it, or begin with nothing."""
        note = self._read_note()
        known = note is not None and (not self._needs_proof or _is_proof(note))
        if note is None or not known or not self.path.exists():
            self.begin(None)
            return
        self.etag = note.get("etag")
        self._digest = hashlib.sha256()
        self.done = await in_thread(lambda: _hash_into(self._digest, self.path))

    def have(self, size: int | None) -> Have:
        """What is here, for `read_answer`."""
        return Have(self.done, size, self.etag)

    def begin(self, etag: str | None) -> None:
        """Forget what is here; what comes is of this version."""
        self._buffer.clear()
        self.path.write_bytes(b"")
        self._digest, self.done = hashlib.sha256(), 0
        self.note(etag)

    def note(self, etag: str | None) -> None:
        """Remember of which version the bytes are."""
        self.etag = etag
        text = json.dumps({"etag": etag, "boot": _boot()})
        replace_text(self._note, text)

    async def add(self, chunk: bytes) -> None:
        """Take a piece; written once enough has gathered."""
        self._buffer += chunk
        if len(self._buffer) >= BUFFER:
            await self.flush()

    async def flush(self) -> None:
        """Write what has gathered."""
        if not self._buffer:
            return
        data, self._buffer = bytes(self._buffer), bytearray()
        await in_thread(lambda: self._write(data))

    def _write(self, data: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(self.done)
            file.write(data)
        self._digest.update(data)
        self.done += len(data)

    @property
    def arrived(self) -> int:
        """Bytes here, the gathered ones too."""
        return self.done + len(self._buffer)

    def sha256(self) -> str:
        """Of everything written."""
        return self._digest.hexdigest()

    async def finish(self, target: Path) -> None:
        """Make it durable and give it its final name: nothing else ever creates that name."""
        await in_thread(lambda: sync_file(self.path))
        self.path.chmod(0o444)
        self.path.rename(target)
        sync_file(target.parent)
        self._note.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove it."""
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)

    def _read_note(self) -> dict[str, str | None] | None:
        try:
            note = json.loads(self._note.read_text())
        except (OSError, ValueError):
            return None
        return note if isinstance(note, dict) else None


def _is_proof(note: dict[str, str | None]) -> bool:
    # After a crash of the machine, pages that never reached the disk read as zeros.
    return note.get("etag") is not None and note.get("boot") == _boot()


def _boot() -> str:
    with contextlib.suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return ""


def _hash_into(digest: "hashlib._Hash", path: Path) -> int:
    """Hash a file in pieces; returns its length."""
    done = 0
    with path.open("rb") as file:
        while data := file.read(_READ):
            digest.update(data)
            done += len(data)
    return done


def hash_file(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    _hash_into(digest, path)
    return digest.hexdigest()


def sync_file(path: Path) -> None:
    """fsync(2) of a file or a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_text(path: Path, text: str) -> None:
    """Write a small file so that a reader, or a kill, sees the old text or the new one."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    fresh.replace(path)


async def in_thread(work: Callable[[], T]) -> T:
    """Run blocking work in a thread and, when cancelled, wait for it: it must not write on."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            await task
        raise
