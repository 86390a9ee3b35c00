"""Which files has this node, and how does a runner get its own? The node's content-addressed store."""

import asyncio
import contextlib
import errno
import hashlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary

from berth.agent.answer import Answer, bare_etag
from berth.agent.courier import Courier
from berth.agent.download import Download, FileRef, Meter, Progress
from berth.agent.fetch_errors import (
    DiskFullError,
    FetchError,
    HashMismatchError,
    SourceForbiddenError,
)
from berth.agent.partial import Partial, in_thread
from berth.agent.shelf import Blob, Shelf, Spare, UrlRecord, grant_of
from berth.units import Bytes, GiB, show_bytes

KEEP_FREE = Bytes(2 * GiB)
"""Disk that fetches leave to the node's own logs and images."""


def backoff_s(attempt: int) -> float:
    """Seconds before the next attempt: 0.5, 1, 2 … 30, and a third at random on top."""
    return float(min(30.0, 0.5 * 2**attempt) * (1 + random.random() / 3))


def silent(done: int, total: int, rate: float) -> None:
    """Progress that nobody wants to know."""


@dataclass
class _Shared:
    """A download that runs, and who waits for it."""

    task: asyncio.Task[Blob]
    grant: str
    listeners: list[Progress]


@dataclass(frozen=True)
class _Promise:
    """Disk that a running download will still take."""

    partial: Partial
    size: int

    @property
    def left(self) -> int:
        return max(0, self.size - self.partial.done)


@dataclass
class _Sum:
    """Progress of several files as that of one."""

    tell: Progress
    total: int
    before: int = field(default=0)

    def part(self, done: int, total: int, rate: float) -> None:
        self.tell(self.before + done, max(self.total, self.before + total), rate)


class Store:
    """One per node. Files are fetched once, verified, and lent to runners by hard links."""

    def __init__(
        self,
        root: Path,
        courier: Courier,
        *,
        hub: str = "",
        keep_free: Bytes = KEEP_FREE,
        backoff: Callable[[int], float] = backoff_s,
    ) -> None:
        """``hub``: the URL of the one hub that is believed when it tells a file's digest."""
        self.shelf = Shelf(root)
        self._courier, self._keep_free, self._backoff = courier, keep_free, backoff
        self._hub = hub.rstrip("/")
        self._running: dict[str, _Shared] = {}
        self._promises: dict[str, _Promise] = {}
        # Weak: a lock is kept by those who hold it or wait for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._pins: Counter[str] = Counter()

    async def provide(
        self, runner: str, files: Sequence[FileRef], progress: Progress = silent
    ) -> Path:
        """Fetch and verify every file, then link them under their own names; returns the folder.

        The folder is what the runner's pod mounts, read-only. Until `release` is called nothing
        in it is deleted. Raises FetchError.
        """
        names = [file.name for file in files]
        if len(set(names)) != len(names):
            raise SourceForbiddenError(f"two files have one name among {', '.join(names)}")
        total = _Sum(progress, sum(file.size or 0 for file in files))
        async with contextlib.AsyncExitStack() as pins:
            blobs = {}
            for file in files:
                blob = await pins.enter_async_context(self._pinned(file, total.part))
                blobs[file.name] = blob.sha256
                total.before += blob.size
            return self.links(runner, blobs)

    async def fetch(self, file: FileRef, progress: Progress = silent) -> Blob:
        """Have one file in the store, verified. Raises FetchError."""
        async with self._pinned(file, progress) as blob:
            return blob

    def links(self, runner: str, names: dict[str, str]) -> Path:
        """The runner's folder, with each name a hard link to the blob of that SHA-256."""
        return self.shelf.link(runner, names)

    def release(self, runner: str) -> None:
        """The runner is gone: its folder goes, the blobs stay as long as there is room."""
        self.shelf.unlink(runner)

    async def make_room(self, need: int) -> int:
        """Delete what nobody uses, least recently used first, until ``need`` bytes are free.

        Returns the bytes free for fetches; it may be less than ``need``.
        """
        for spare in self._spares():
            if self._free() >= need:
                break
            await self._delete(spare)
        return self._free()

    async def trim(self, budget: int) -> int:
        """Delete what nobody uses, least recently used first, down to ``budget`` bytes of blobs.

        Returns the bytes of blobs left.
        """
        held = sum(blob.size for blob in self.shelf.list_blobs())
        for spare in self._spares():
            if held <= budget:
                break
            if spare.is_blob and await self._delete(spare):
                held -= spare.size
        return held

    def _spares(self) -> list[Spare]:
        return self.shelf.spares(self._pins, self._running)

    async def _delete(self, spare: Spare) -> bool:
        """Delete it unless somebody has come to use it since it was listed."""
        if spare.path.name in self._pins or spare.path.name in self._running:
            return False
        condemned = self.shelf.condemn(spare)
        if condemned is None:
            return False
        await in_thread(lambda: condemned.unlink(missing_ok=True))
        return True

    # -- one file ----------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _pinned(self, file: FileRef, progress: Progress) -> AsyncIterator[Blob]:
        """The file's blob, which is not deleted while the block lasts."""
        # A digest that is known is pinned before it is looked at, so that no deletion comes between.
        early = file.sha256 or ""
        self._pins[early] += 1
        try:
            blob = await self._have(file, progress)
            while not self.shelf.path(blob.sha256).exists():
                blob = await self._have(file, progress)
            self._pins[blob.sha256] += 1
        finally:
            self._unpin(early)
        try:
            self.shelf.touch(blob.sha256)
            progress(blob.size, blob.size, 0.0)
            yield blob
        finally:
            self._unpin(blob.sha256)

    def _unpin(self, sha256: str) -> None:
        self._pins[sha256] -= 1
        if self._pins[sha256] <= 0:
            del self._pins[sha256]

    async def _have(self, file: FileRef, progress: Progress) -> Blob:
        """The blob that this source, with these credentials, has resolved to.

        A blob that another Model brought is handed over only when this Model's own source proves
        to be the same: it has before, or it tells the same digest, or its URL still has the ETag
        under which the blob came. Otherwise the file is fetched for itself.
        """
        granted = await self._granted(file)
        if granted is not None:
            return granted
        key = _key(file)
        while True:
            proved = await self._proved(file)
            if proved is not None:
                return proved
            # Looked up after the last await: what runs now may be somebody else's.
            shared = self._running.get(key) or self._start(file, key)
            if shared.grant == _grant(file):
                return await self._join(shared, key, progress)
            with contextlib.suppress(FetchError):
                await self._join(shared, key, progress)

    async def _granted(self, file: FileRef) -> Blob | None:
        record = self.shelf.record(file.url)
        if record is None or not _is_same(file, record):
            return None
        if grant_of(file.credentials) not in record.grants:
            return None
        return await self._trusted(record.sha256)

    async def _trusted(self, sha256: str) -> Blob | None:
        if not await in_thread(lambda: self.shelf.is_trusted(sha256)):
            return None
        try:
            return Blob(sha256, self.shelf.path(sha256).stat().st_size)
        except FileNotFoundError:  # room was made between the look and now
            return None

    async def _proved(self, file: FileRef) -> Blob | None:
        """The blob that is here, if the source itself says that it is this one."""
        record = self.shelf.record(file.url)
        sha256 = file.sha256 or (record.sha256 if record is not None else None)
        blob = await self._trusted(sha256) if sha256 else None
        if blob is None:
            return None
        headers = {"Accept-Encoding": "identity", "Range": "bytes=0-0"}
        async with self._courier.ask(file.url, headers, file.credentials) as (answer, _):
            if answer.status not in (200, 206):
                return None
            if not self._tells(file, blob, answer, record):
                return None
            self.shelf.grant(file.url, blob, answer.version, file.credentials)
        return blob

    def _tells(self, file: FileRef, blob: Blob, answer: Answer, record: UrlRecord | None) -> bool:
        # Only the hub that the cluster's settings name is believed about a digest: any server
        # could claim that of a file which it does not have, and be handed it.
        linked = answer.headers.get("x-linked-etag", "").strip('"')
        if linked == blob.sha256 and self._hub and file.url.startswith(self._hub + "/"):
            return True
        if record is None or record.sha256 != blob.sha256:
            return False
        return bool(record.etag) and record.etag == answer.version

    # -- downloads ---------------------------------------------------------------------------

    def _start(self, file: FileRef, key: str) -> _Shared:
        listeners: list[Progress] = []

        def tell(done: int, total: int, rate: float) -> None:
            for listener in tuple(listeners):
                listener(done, total, rate)

        task = asyncio.create_task(self._download(file, key, tell), name=f"fetch {file.name}")
        shared = self._running[key] = _Shared(task, _grant(file), listeners)
        task.add_done_callback(lambda _: self._forget(key, shared))
        return shared

    def _forget(self, key: str, shared: _Shared) -> None:
        if self._running.get(key) is shared:
            del self._running[key]

    async def _join(self, shared: _Shared, key: str, progress: Progress) -> Blob:
        """Wait for a download. When the last one who waits goes away, it is cancelled."""
        shared.listeners.append(progress)
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.listeners.remove(progress)
            if not shared.listeners and not shared.task.done():
                self._forget(key, shared)
                shared.task.cancel()
                await asyncio.wait([shared.task])

    async def _download(self, file: FileRef, key: str, tell: Progress) -> Blob:
        # One that was cancelled may still be writing its last piece.
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            partial = Partial(self.shelf.partials / key, needs_proof=file.sha256 is None)

            async def reserve(left: int) -> None:
                await self._reserve(key, partial, left)

            download = Download(
                file,
                partial,
                self._courier,
                reserve=reserve,
                meter=Meter(tell),
                backoff=self._backoff,
            )
            try:
                sha256 = await download.run()
                blob = await self._settle(partial, sha256)
                self.shelf.grant(file.url, blob, download.version, file.credentials)
            except HashMismatchError:
                partial.discard()
                raise
            except OSError as err:
                # Somebody else may have taken the room that was there at the first byte.
                if err.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise DiskFullError(f"{file.name}: {self.shelf.root}: {err.strerror}") from err
            finally:
                self._promises.pop(key, None)
            return blob

    async def _settle(self, partial: Partial, sha256: str) -> Blob:
        present = await self._trusted(sha256)
        if present is not None:
            # Fetched only as a proof: runners' links go on sharing the blob that is here.
            partial.discard()
            return present
        await partial.finish(self.shelf.path(sha256))
        return self.shelf.mark(sha256)

    async def _reserve(self, key: str, partial: Partial, left: int) -> None:
        self._promises.pop(key, None)
        free = self._free()
        if left > free:
            free = await self.make_room(left)
        if left > free:
            raise DiskFullError(
                f"{show_bytes(left)} are still to come, {show_bytes(max(0, free))} are free in "
                f"{self.shelf.root} beside {show_bytes(self._keep_free)} kept free; nothing there "
                "is without use"
            )
        self._promises[key] = _Promise(partial, partial.done + left)

    def _free(self) -> int:
        promised = sum(promise.left for promise in self._promises.values())
        return self.shelf.free_bytes() - self._keep_free - promised


def _key(file: FileRef) -> str:
    """Downloads of one key are one download: the content where it is known, else the URL."""
    return file.sha256 or "url-" + hashlib.sha256(file.url.encode()).hexdigest()


def _grant(file: FileRef) -> str:
    return f"{file.url} {grant_of(file.credentials)}"


def _is_same(file: FileRef, record: UrlRecord) -> bool:
    """Whether what the URL resolved to is what is asked for now."""
    if file.sha256 is not None:
        return file.sha256 == record.sha256
    wanted = bare_etag(file.etag)
    return file.size in (None, record.size) and wanted in ("", record.etag)
