"""Which requests come, when, and how long does each take? Read from JSON lines or YAML."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ConfigDict, Field, ValidationError

from berth.api.meta import Duration, Wire, seconds_of
from berth.cli.errors import CommandError
from berth.cli.read import told

MOST = 1_000_000


@dataclass(frozen=True)
class Request:
    """One request. ``seconds``: how long its answer takes once a runner has it."""

    at: float
    model: str
    seconds: float


class Entry(Wire):
    """One line of a trace: one request, or ``count`` of them ``every`` so often."""

    model_config = ConfigDict(extra="forbid")
    at: float | Duration = 0
    model: str = Field(min_length=1)
    seconds: float | None = Field(default=None, ge=0)
    count: int = Field(default=1, ge=1, le=MOST)
    every: Duration = "0"


def read_trace(path: str, keys: Mapping[str, str], default_s: Mapping[str, float]) -> list[Request]:
    """The requests in the order of their coming. Raises CommandError.

    ``keys``: the key of each Model by every name that it may be called; ``default_s``: seconds of
    an answer by key, where a line does not say.
    """
    found: list[Request] = []
    for number, row in _rows(path):
        try:
            entry = Entry.model_validate(row)
        except ValidationError as err:
            raise _wrong(path, number, told(err), "write {at, model, seconds}") from err
        key = keys.get(entry.model)
        if key is None:
            names = ", ".join(sorted(set(keys.values()))[:8])
            raise _wrong(path, number, f"no model {entry.model}", f"name one of: {names}")
        found += _requests(entry, key, default_s[key])
    return sorted(found, key=lambda request: request.at)


def _requests(entry: Entry, key: str, default_s: float) -> Iterator[Request]:
    start = entry.at if isinstance(entry.at, float | int) else seconds_of(entry.at)
    seconds = default_s if entry.seconds is None else entry.seconds
    for index in range(entry.count):
        yield Request(start + index * seconds_of(entry.every), key, seconds)


def _rows(path: str) -> Iterator[tuple[int, Any]]:
    """Each entry with its number; a `.jsonl` file has one a line."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        if path.endswith((".jsonl", ".ndjson")):
            lines = enumerate(text.splitlines(), start=1)
            yield from [(number, json.loads(line)) for number, line in lines if line.strip()]
            return
        whole = yaml.safe_load(text)
    except OSError as err:
        raise CommandError(
            f"reading the trace {path}", wrong=str(err.strerror), todo="name a file"
        ) from err
    except (ValueError, yaml.YAMLError) as err:
        raise CommandError(
            f"reading the trace {path}",
            wrong=str(err),
            todo="write JSON, one object a line, in a file named .jsonl; else YAML",
        ) from err
    rows = whole.get("requests") if isinstance(whole, dict) else whole
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise CommandError(
            f"reading the trace {path}",
            wrong="it has no list of requests",
            todo="write `requests: [{at: 0, model: NAME, seconds: 5}]`",
        )
    yield from enumerate(rows, start=1)


def _wrong(path: str, number: int, wrong: str, todo: str) -> CommandError:
    return CommandError(f"reading entry {number} of the trace {path}", wrong=wrong, todo=todo)
