"""What is asked of a header reader, and what does it answer? (All of it travels as JSON to a child process.)"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from berth.facts import Facts


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository on a Hugging Face hub; without ``files`` the one model in it is meant.

    ``files`` are names or shell patterns (``*Q4_K_M*``); one shard of a split set stands for the set.
    """

    repo: str
    revision: str = "main"
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UrlSource:
    """A file by URL; ``sha256`` is what its whole content must be."""

    uri: str
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class PathSource:
    """A file, or a folder of one model, on this machine."""

    path: str


Source = HubSource | UrlSource | PathSource

DEFAULT_ENDPOINT = "https://huggingface.co"


@dataclass(frozen=True, slots=True)
class HeaderRequest:
    """One header to read.

    ``token`` is sent to the source's own host alone. ``allow`` lists hosts, ``host:port`` or CIDRs that may
    be reached although their addresses are private. ``namespace`` only shares out the pool's places.
    """

    source: Source
    endpoint: str = DEFAULT_ENDPOINT
    token: str | None = field(default=None, repr=False)
    allow: tuple[str, ...] = ()
    namespace: str = ""

    def to_json(self) -> dict[str, Any]:
        """A JSON object that :meth:`from_json` reads."""
        return {**asdict(self), "kind": type(self.source).__name__}

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> "HeaderRequest":
        """The inverse of :meth:`to_json`."""
        shapes: dict[str, Any] = {
            kind.__name__: kind for kind in (HubSource, UrlSource, PathSource)
        }
        fields = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in row["source"].items()
        }
        rest = {key: row[key] for key in ("endpoint", "token", "namespace")}
        return HeaderRequest(
            source=shapes[row["kind"]](**fields), allow=tuple(row["allow"]), **rest
        )


@dataclass(frozen=True, slots=True)
class FileRef:
    """One file of a source: where it is, and what tells its content from another's."""

    url: str
    path: str
    size: int
    sha256: str | None = None
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class HeaderResult:
    """What a source holds: facts, every file of it, the revision it was pinned to, a digest of the content."""

    facts: Facts
    files: tuple[FileRef, ...]
    revision: str
    digest: str

    def to_json(self) -> dict[str, Any]:
        """A JSON object that :meth:`from_json` reads."""
        return {
            "facts": self.facts.to_json(),
            "files": [asdict(file) for file in self.files],
            "revision": self.revision,
            "digest": self.digest,
        }

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> "HeaderResult":
        """The inverse of :meth:`to_json`."""
        files = tuple(FileRef(**file) for file in row["files"])
        return HeaderResult(Facts.from_json(row["facts"]), files, row["revision"], row["digest"])
