"""Which admissions, refusals and kills were there on this node? JSON lines that outlive restarts."""

import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)
FILE_LIMIT = 4 << 20
"""Bytes of one file; two are kept."""


class Journal:
    """Appends to ``journal.jsonl`` in a folder; the file before it is ``journal.1.jsonl``.

    A journal that cannot be written is logged and never in the way of what it tells of.
    """

    def __init__(self, folder: Path, clock: Callable[[], str], limit: int = FILE_LIMIT) -> None:
        self._folder = folder
        self._path = folder / "journal.jsonl"
        self._clock = clock
        self._limit = limit
        self._is_checked = False

    def note(self, kind: str, **fields: Any) -> None:
        """One line: when, what, and its fields."""
        line = json.dumps({"at": self._clock(), "kind": kind, **fields}, separators=(",", ":"))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._rotate(len(line) + 1)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(self._mend() + line + "\n")
        except OSError as err:
            log.error("journal not written: %s: %s", err, line)

    def read(self) -> list[Mapping[str, Any]]:
        """Every line kept, oldest first; lines cut short by a crash are left out."""
        rows: list[Mapping[str, Any]] = []
        for path in (self._folder / "journal.1.jsonl", self._path):
            if path.exists():
                rows += _rows(path)
        return rows

    def _mend(self) -> str:
        """Ends a line that a crash cut short, so that the next one is not lost with it."""
        if self._is_checked:
            return ""
        self._is_checked = True
        text = self._path.read_bytes()
        return "\n" if text and not text.endswith(b"\n") else ""

    def _rotate(self, more: int) -> None:
        if self._path.exists() and self._path.stat().st_size + more > self._limit:
            os.replace(self._path, self._folder / "journal.1.jsonl")  # noqa: PTH105 - atomic


def _rows(path: Path) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows
