"""What did each model and each key use each day, whatever restarts in between?

One file for each day and gateway, ``DAY.GATEWAY.json``, in a folder that outlives the pod; off without one. It is
replaced whole, so a reader never sees half of it. Sums over gateways are the reader's.
"""

import contextlib
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from berth.gateway.usage import Usage

ROWS_MAX = 10_000
OTHER = "other"
"""Model and key of what comes once a day has so many rows."""
KEPT_DAYS = 400


class Row(msgspec.Struct, rename="camel"):
    """The sum of one model and key on one day."""

    model: str
    key: str
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Daybook:
    """The sums of one gateway. Raises OSError when its folder cannot be used."""

    def __init__(self, folder: Path, gateway: str, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._gateway = gateway.replace("/", "_")[:128]
        self._clock = clock
        self._rows: dict[tuple[str, str], Row] = {}
        self._is_due = False
        folder.mkdir(parents=True, exist_ok=True)
        self._day = self._today()
        self._read()

    def add(self, model: str, key: str, usage: Usage) -> None:
        """One request that ended."""
        if self._day != self._today():
            self.save()
            self._day, self._rows = self._today(), {}
            self._forget_old()
        row = self._rows.get((model, key))
        if row is None:
            if len(self._rows) >= ROWS_MAX:
                model = key = OTHER
            row = self._rows.setdefault((model, key), Row(model, key))
        row.requests += 1
        row.prompt_tokens += usage.prompt or 0
        row.completion_tokens += usage.completion or 0
        self._is_due = True

    def save(self) -> None:
        """Write what is new. Raises OSError; the next call tries again."""
        if not self._is_due:
            return
        fresh = self._file.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(list(self._rows.values())))
        fresh.replace(self._file)
        self._is_due = False

    @property
    def _file(self) -> Path:
        return self._folder / f"{self._day}.{self._gateway}.json"

    def _today(self) -> str:
        return datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%d")

    def _read(self) -> None:
        """This gateway's own word of earlier today, where its container was restarted."""
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
            rows = msgspec.json.decode(self._file.read_bytes(), type=list[Row])
            self._rows = {(row.model, row.key): row for row in rows}

    def _forget_old(self) -> None:
        oldest = datetime.fromtimestamp(self._clock(), UTC) - timedelta(days=KEPT_DAYS)
        for file in self._folder.glob("????-??-??.*.json"):
            if file.name < oldest.strftime("%Y-%m-%d"):
                file.unlink(missing_ok=True)
