"""Which sources does a Model name, and how do their headers become its facts?"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

from berth.api.inventory import InspectedPath, NodeInventory
from berth.api.model import FactsStatus, FileFact, Model, Source
from berth.facts import Facts
from berth.headers import HeaderResult, HubSource, UrlSource
from berth.headers.request import Source as HeaderSource

Role = Literal["weights", "projector", "adapter", "draft", "config"]
WEIGHTS = "weights"


@dataclass(frozen=True)
class Part:
    """One source of a Model. ``name`` is unique within it; files beside the weights lie in a folder
    of that name."""

    name: str
    role: Role
    source: Source
    scale: str = "1.0"


def parts_of(model: Model) -> list[Part]:
    """The weights first, then whatever goes with them."""
    spec = model.spec
    found = [Part(WEIGHTS, "weights", spec.source)]
    if spec.projector:
        found.append(Part("projector", "projector", spec.projector))
    for index, adapter in enumerate(spec.adapters):
        found.append(Part(f"adapter-{index}", "adapter", adapter.source, adapter.scale))
    if spec.draft:
        found.append(Part("draft", "draft", spec.draft))
    return found


def header_source(source: Source) -> HeaderSource | None:
    """What the header reader is asked for; None where only a node can see the files."""
    if source.hugging_face:
        hub = source.hugging_face
        return HubSource(repo=hub.repo, revision=hub.revision, files=tuple(hub.files))
    if source.url:
        return UrlSource(uri=source.url.uri, sha256=source.url.sha256)
    return None


def facts_status(
    results: Mapping[str, HeaderResult], parts: Sequence[Part], source_hash: str
) -> FactsStatus:
    """All parts' facts as one status. ``record`` is the weights' own, the others' beside it."""
    main, *others = (results[part.name] for part in parts)
    digests = "".join(other.digest for other in others)
    return FactsStatus.saying(
        main.facts,
        files=[file for part in parts for file in _files(part, results[part.name])],
        digest=joined(main.digest, digests) if digests else main.digest,
        revision=main.revision,
        source_hash=source_hash,
        parts={part.name: results[part.name].facts for part in parts[1:]},
    )


def joined(digest: str, others: str) -> str:
    """One digest of several."""
    return hashlib.sha256((digest + others).encode()).hexdigest()


def _files(part: Part, result: HeaderResult) -> list[FileFact]:
    folder = "" if part.name == WEIGHTS else f"{part.name}/"
    return [
        FileFact(
            name=f"{folder}{file.path}"[:512],
            url=file.url[:2048],
            size=file.size,
            sha256=file.sha256,
            etag=file.etag[:256] if file.etag else None,
            role=part.role,
        )
        for file in result.files
    ]


def facts_of(status: FactsStatus) -> dict[str, Facts]:
    """The facts of each part by name, out of a stored record. Raises ValueError, KeyError, TypeError."""
    row: dict[str, Any] = json.loads(status.record)
    parts = row.pop("parts", {})
    return {WEIGHTS: Facts.from_json(row)} | {k: Facts.from_json(v) for k, v in parts.items()}


# Host paths: the nodes look.


def host_path_of(model: Model) -> str:
    """The path on the node, as its agent names it; empty where the source is another."""
    path = model.spec.source.path
    if path is None or path.host_path is None:
        return ""
    return os.path.normpath(f"{path.host_path}/{path.path.lstrip('/')}")


@dataclass(frozen=True)
class Inspected:
    """What the nodes say of one host path: which have it, with which facts, or why not."""

    nodes: frozenset[str] = frozenset()
    facts: FactsStatus | None = None
    refusal: InspectedPath | None = None


def inspected(path: str, inventories: Sequence[NodeInventory]) -> Inspected:
    """The first digest by node name counts; nodes whose files differ are left out."""
    facts: FactsStatus | None = None
    refusal: InspectedPath | None = None
    nodes: set[str] = set()
    for inventory in sorted(inventories, key=lambda i: i.metadata.name):
        entry = next((e for e in inventory.status.paths if e.path == path), None)
        if entry is None:
            continue
        if entry.facts is None:
            refusal = refusal or entry
            continue
        facts = facts or entry.facts
        if entry.facts.digest == facts.digest:
            nodes.add(inventory.metadata.name)
    return Inspected(frozenset(nodes), facts, refusal)


def mounted_files(model: Model, facts: FactsStatus) -> list[FileFact]:
    """The files by their names below the mounted directory or claim, in the order of the facts."""
    sources = {part.name: part.source.path for part in parts_of(model)}
    # A file beside the weights lies in a folder of its part's name: see `facts_status`.
    whole = [
        (folder or WEIGHTS, name)
        for folder, _, name in (f.name.rpartition("/") for f in facts.files)
    ]
    found = []
    for (part, name), file in zip(whole, facts.files, strict=True):
        path = sources[part]
        assert path is not None
        inside = PurePosixPath(path.path.strip("/"))
        folder = inside.parent if (part, inside.name) in whole else inside
        found.append(file.model_copy(update={"name": str(folder / name), "url": ""}))
    return found
