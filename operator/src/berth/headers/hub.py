"""Which files of a Hugging Face repository are meant, and at which commit?

Protocol: ``GET {endpoint}/api/models/{repo}/revision/{revision}`` names the commit and the files
(``siblings``); ``{endpoint}/{repo}/resolve/{commit}/{file}`` serves them, with ``X-Linked-Etag`` (SHA-256
of a large file) and ``X-Repo-Commit``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING
from urllib.parse import quote

from berth.headers.errors import HeaderError, HeaderReason
from berth.headers.request import HubSource
from berth.headers.safetensors import expected_shards, parse_json

if TYPE_CHECKING:  # Names of files are chosen for paths too, without an HTTP client.
    from berth.headers.http import GuardedClient

MAX_LISTING = 16 << 20
_REPO = re.compile(r"^[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?$")
_REVISION = re.compile(r"^[A-Za-z0-9][\w./-]{0,127}$")
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_PREFERRED = ("Q4_K_M", "Q4_K_S", "MXFP4", "Q4_0", "Q8_0", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository at one commit."""

    repo: str
    commit: str
    names: tuple[str, ...]


def list_repository(client: GuardedClient, endpoint: str, source: HubSource) -> Listing:
    """The repository's files and the commit that the revision names now. Raises HeaderError."""
    if (
        not _REPO.match(source.repo)
        or not _REVISION.match(source.revision)
        or ".." in source.repo + source.revision
    ):
        raise HeaderError(
            HeaderReason.SOURCE_NOT_FOUND,
            f"{source.repo}@{source.revision} is no repository's name",
        )
    url = f"{endpoint.rstrip('/')}/api/models/{source.repo}/revision/{quote(source.revision, safe='')}"
    row = parse_json(read_whole(client, url, MAX_LISTING), f"the listing of {source.repo}")
    siblings = row.get("siblings")
    names = (
        [str(one.get("rfilename", "")) for one in siblings if isinstance(one, dict)]
        if isinstance(siblings, list)
        else []
    )
    good = tuple(name for name in names if name and ".." not in name and not name.startswith("/"))
    commit = row.get("sha")
    if not isinstance(commit, str) or not _REVISION.match(commit):
        raise HeaderError(
            HeaderReason.SOURCE_FAILED,
            f"the hub names no commit for {source.repo}@{source.revision}",
        )
    return Listing(source.repo, commit, good)


def read_whole(client: GuardedClient, url: str, most: int) -> bytes:
    """A small document. Raises HeaderError where it is longer than ``most`` bytes."""
    with client.open("GET", url) as answer:
        parts, total = [], 0
        for piece in answer.response.iter_raw(1 << 16):
            parts.append(piece)
            total += len(piece)
            if total > most:
                raise HeaderError(HeaderReason.SOURCE_FAILED, f"{url} is longer than {most} bytes")
    return b"".join(parts)


def resolve_url(endpoint: str, listing: Listing, name: str) -> str:
    """Where a file's content is served, pinned to the commit."""
    return f"{endpoint.rstrip('/')}/{listing.repo}/resolve/{listing.commit}/{quote(name)}"


def choose_files(names: Sequence[str], wanted: Sequence[str], where: str) -> list[str]:
    """The files of the one model that is meant, in shard order.

    1. With ``wanted``: the names and patterns given; one shard stands for its set.
    2. Without: the only GGUF model, or the one of the first preferred quantisation; projectors do not count.
    3. Else all safetensors files.
    Raises HeaderError: NoModelFile, AmbiguousFile, MissingShard.
    """
    if wanted:
        found = [
            name for name in names if any(name == one or fnmatchcase(name, one) for one in wanted)
        ]
        if not found:
            raise HeaderError(
                HeaderReason.NO_MODEL_FILE, f"{where} has no file {', '.join(wanted)}"
            )
        weights = [name for name in found if name.endswith((".gguf", ".safetensors"))]
        return _whole_sets(_one_model(weights, where) if weights else found, names)
    models = [
        name
        for name in names
        if name.endswith(".gguf") and "mmproj" not in name.rpartition("/")[2].lower()
    ]
    if models:
        return _whole_sets(_preferred(models, where), names)
    tensors = sorted(name for name in names if name.endswith(".safetensors") and "/" not in name)
    if not tensors:
        raise HeaderError(
            HeaderReason.NO_MODEL_FILE, f"{where} has neither GGUF nor safetensors files"
        )
    named = [name for name in tensors if name.startswith("model")]
    return _whole_sets(named or tensors, names)


def gguf_shards(name: str) -> list[str]:
    """All names of the set ``…-00001-of-0000N.gguf``; the name itself where it is no split file."""
    match = _SPLIT.search(name)
    if match is None:
        return [name]
    count = int(match[2])
    if not 0 < count <= 1000 or not 0 < int(match[1]) <= count:
        raise HeaderError(HeaderReason.MISSING_SHARD, f"{name} is not one of {count} files")
    return [
        f"{name[: match.start()]}-{number:05d}-of-{match[2]}.gguf" for number in range(1, count + 1)
    ]


def _set_of(name: str) -> str:
    return gguf_shards(name)[0] if name.endswith(".gguf") else "safetensors"


def _one_model(names: Sequence[str], where: str) -> list[str]:
    sets = dict.fromkeys(_set_of(name) for name in names)
    if len(sets) > 1:
        shown = ", ".join(list(sets)[:6])
        raise HeaderError(
            HeaderReason.AMBIGUOUS_FILE,
            f"{where} has {len(sets)} models that fit: {shown}; name one",
        )
    return list(names)


def _preferred(names: Sequence[str], where: str) -> list[str]:
    sets = list(dict.fromkeys(_set_of(name) for name in names))
    if len(sets) == 1:
        return [sets[0]]
    for kind in _PREFERRED:
        fitting = [
            name for name in sets if re.search(rf"(^|[-._/]){kind}([-._/]|$)", name, re.IGNORECASE)
        ]
        if len(fitting) == 1:
            return fitting
    return _one_model(sets, where)


def _whole_sets(chosen: Sequence[str], names: Sequence[str]) -> list[str]:
    full: dict[str, None] = {}
    for name in chosen:
        full |= dict.fromkeys(
            gguf_shards(name) if name.endswith(".gguf") else expected_shards(name)
        )
    for name in full:
        if name not in names:
            raise HeaderError(HeaderReason.MISSING_SHARD, f"the file {name} is missing")
    return sorted(full)
