"""What does the store look like on disk, what may be trusted of it, and what may be deleted?

::

    ROOT/blobs/sha256/HEX     verified content, read-only; the name is the hash
    ROOT/marks/HEX.json       size and mtime of the blob when it was verified; own mtime = last use
    ROOT/urls/HASH.json       what a URL resolved to, and for whose credentials
    ROOT/partial/KEY[.json]   what has arrived so far
    ROOT/trash/               condemned, being deleted
    ROOT/runners/UID/NAME     hard links: a blob in use has more than one link
    ROOT/sessions/UID/KEY/    what engines have saved (`berth.agent.sessions`)
    ROOT/loans/UID.json       which pod may mount that folder (`berth.agent.loans`)

A blob appears by rename only, so a kill at any moment leaves a whole blob or none.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath

from berth.agent.fetch_errors import SourceForbiddenError
from berth.agent.partial import hash_file, replace_text, sync_file
from berth.units import Bytes


@dataclass(frozen=True)
class Blob:
    """A verified file: its SHA-256 in hex and its size in bytes."""

    sha256: str
    size: int


@dataclass
class UrlRecord:
    """What a URL resolved to. ``grants``: hashes of the credentials that it resolved with."""

    sha256: str
    size: int
    etag: str = ""
    """Bare, as of `berth.agent.answer.bare_etag`; empty when the source has none."""
    grants: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Spare:
    """Something that may be deleted: nothing uses it. ``used`` in seconds since the epoch."""

    path: Path
    size: int
    used: float
    is_blob: bool


class Shelf:
    """The folder. Every method is quick but `is_trusted`, which may hash a whole file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.blobs = root / "blobs" / "sha256"
        self.partials = root / "partial"
        self.runners = root / "runners"
        self._marks = root / "marks"
        self._urls = root / "urls"
        self._trash = root / "trash"
        shutil.rmtree(self._trash, ignore_errors=True)
        for folder in (
            self.blobs,
            self.partials,
            self.runners,
            self._marks,
            self._urls,
            self._trash,
        ):
            folder.mkdir(parents=True, exist_ok=True)

    # -- blobs -------------------------------------------------------------------------------

    def path(self, sha256: str) -> Path:
        """Where the blob is, or will be."""
        return self.blobs / sha256

    def is_trusted(self, sha256: str) -> bool:
        """Whether the blob is here and is what it says.

        Its size and mtime must be those of its verification; otherwise it is hashed again, and
        removed when it is damaged.
        """
        path = self.path(sha256)
        try:
            stat = path.stat()
        except FileNotFoundError:
            return False
        if self._mark(sha256) == {"size": stat.st_size, "mtimeNs": stat.st_mtime_ns}:
            return True
        if hash_file(path) == sha256:
            self.mark(sha256)
            return True
        path.unlink()
        return False

    def mark(self, sha256: str) -> Blob:
        """Note that the blob has just been verified."""
        stat = self.path(sha256).stat()
        text = json.dumps({"size": stat.st_size, "mtimeNs": stat.st_mtime_ns})
        replace_text(self._marks / f"{sha256}.json", text)
        return Blob(sha256, stat.st_size)

    def touch(self, sha256: str) -> None:
        """Note a use, for the order in which room is made."""
        mark = self._marks / f"{sha256}.json"
        if mark.exists():
            os.utime(mark)

    def list_blobs(self) -> list[Blob]:
        """Every blob, by hash."""
        return [Blob(p.name, p.stat().st_size) for p in sorted(self.blobs.iterdir())]

    def _mark(self, sha256: str) -> object:
        return _read_json(self._marks / f"{sha256}.json")

    # -- where a blob came from --------------------------------------------------------------

    def record(self, url: str) -> UrlRecord | None:
        """What the URL resolved to when it was last fetched."""
        data = _read_json(self._urls / f"{_name(url)}.json")
        try:
            return UrlRecord(**data) if isinstance(data, dict) else None
        except TypeError:
            return None

    def grant(self, url: str, blob: Blob, etag: str, credentials: Mapping[str, str]) -> None:
        """Note that the URL, with these credentials, resolved to the blob."""
        record = self.record(url)
        grants = record.grants if record is not None and record.sha256 == blob.sha256 else []
        mine = grant_of(credentials)
        fresh = UrlRecord(blob.sha256, blob.size, etag, sorted({*grants, mine}))
        replace_text(self._urls / f"{_name(url)}.json", json.dumps(asdict(fresh)))

    # -- runners -----------------------------------------------------------------------------

    def link(self, runner: str, names: Mapping[str, str]) -> Path:
        """Make ``runners/RUNNER/NAME`` a hard link to each blob; returns the folder.

        Raises SourceForbiddenError for a name that would leave the folder.
        """
        folder = self.runners / _plain_name(runner)
        folder.mkdir(exist_ok=True)
        for name, sha256 in names.items():
            target = folder / _relative(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            fresh = target.with_name(target.name + ".new")
            fresh.unlink(missing_ok=True)
            fresh.hardlink_to(self.path(sha256))
            # rename(2) does nothing when both names are the same file already.
            fresh.replace(target)
            fresh.unlink(missing_ok=True)
            self.touch(sha256)
        sync_file(folder)
        return folder

    def unlink(self, runner: str) -> None:
        """Remove a runner's folder; its blobs stay until room is needed."""
        shutil.rmtree(self.runners / _plain_name(runner), ignore_errors=True)

    def list_runners(self) -> list[str]:
        """Runners that have a folder here."""
        return sorted(path.name for path in self.runners.iterdir())

    # -- room --------------------------------------------------------------------------------

    def free_bytes(self) -> Bytes:
        """What the file system would still give to us."""
        stat = os.statvfs(self.root)
        return Bytes(stat.f_bavail * stat.f_frsize)

    def spares(self, pinned: Iterable[str], fetching: Iterable[str]) -> list[Spare]:
        """Blobs without a link and without a pin, and partial files that nobody fetches.

        Least recently used first. A runner's link is on the disk, so a restart forgets no use.
        """
        kept, busy = set(pinned), set(fetching)
        blobs = [
            Spare(path, stat.st_size, self._used(path.name, stat.st_mtime), True)
            for path in self.blobs.iterdir()
            if path.name not in kept and (stat := path.stat()).st_nlink == 1
        ]
        partials = [
            Spare(path, stat.st_size, stat.st_mtime, False)
            for path in self.partials.iterdir()
            if path.suffix == "" and path.name not in busy and (stat := path.stat())
        ]
        return sorted(blobs + partials, key=lambda spare: (spare.used, spare.path.name))

    def condemn(self, spare: Spare) -> Path | None:
        """Take it off the shelf at once; what is returned is to be deleted at leisure.

        None: it has got a user, or is gone, in the meantime.
        """
        try:
            if spare.is_blob and spare.path.stat().st_nlink > 1:
                return None
            condemned = self._trash / spare.path.name
            spare.path.rename(condemned)
        except FileNotFoundError:
            return None
        note = self._marks if spare.is_blob else self.partials
        (note / f"{spare.path.name}.json").unlink(missing_ok=True)
        return condemned

    def _used(self, sha256: str, otherwise: float) -> float:
        try:
            return (self._marks / f"{sha256}.json").stat().st_mtime
        except FileNotFoundError:
            return otherwise


def grant_of(credentials: Mapping[str, str]) -> str:
    """Credentials as they may lie on the disk: only their hash."""
    text = json.dumps(sorted((name.lower(), value) for name, value in credentials.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def _name(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()


def _plain_name(text: str) -> str:
    if not text or "/" in text or text in {".", ".."}:
        raise ValueError(f"{text!r} is not the name of a runner's folder")
    return text


def _relative(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise SourceForbiddenError(f"{name!r} is not a name within a model's folder")
    return path


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None
