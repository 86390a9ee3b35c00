"""What did each request do, and what do all of them add up to? One log line each, and counters.

Nothing here is done per chunk. Counters are plain numbers; `metrics` shows them to Prometheus.
"""

import asyncio
import contextlib
import queue
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import BinaryIO

import msgspec

from berth.gateway.daybook import Daybook
from berth.gateway.usage import Usage, read_usage

UNKNOWN = "unknown"
"""The one label of requests whose model nobody declares: clients must not make series."""
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
FLUSH_S = 0.2
FLUSH_LINES = 256
BACKLOG = 1000


@dataclass(slots=True)
class Histogram:
    """Counts by bucket, and their sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(BUCKETS, value)] += 1
        self.total += value


@dataclass(slots=True)
class ModelAccount:
    """Everything counted of one model since the gateway's start."""

    requests: dict[str, int] = field(default_factory=dict)
    """By outcome: an HTTP status of the runner, or the code of our own error."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    retries: int = 0
    abandoned: int = 0
    queue_s: Histogram = field(default_factory=Histogram)
    first_s: Histogram = field(default_factory=Histogram)
    total_s: Histogram = field(default_factory=Histogram)


@dataclass(slots=True)
class Call:
    """One request, from its arrival to the end of its answer. Never holds text of either."""

    id: str
    path: str
    began: float
    caller: str = ""
    model: str = UNKNOWN
    """``namespace/name`` of the Model."""
    stream: bool = False
    runner: str = ""
    status: int = 0
    error: str = ""
    """Code of our own error, or ``client_gone``."""
    sent: float = 0.0
    first: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    events: int = 0
    retries: int = 0
    head: bytes = b""
    tail: bytes = b""


class LineWriter:
    """Writes log lines in a thread of its own: whoever reads them slowly must not delay a stream.

    Beyond ``BACKLOG`` batches that wait, lines are lost rather than memory.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._batches: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="request-log", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        if self._batches.qsize() < BACKLOG:
            self._batches.put(data)

    def close(self, timeout: float = 2.0) -> None:
        """Write what is left, for so long at most."""
        self._batches.put(b"")
        self._thread.join(timeout)

    def _run(self) -> None:
        while data := self._batches.get():
            # A closed pipe must not end the log for ever, nor the gateway.
            with contextlib.suppress(OSError, ValueError):
                self._file.write(data)
                self._file.flush()


class Ledger:
    """Accounts of all models, and the request log."""

    def __init__(self, *, write: Callable[[bytes], object], clock: Callable[[], float]) -> None:
        self._write = write
        self._clock = clock
        self._encode = msgspec.json.Encoder().encode
        self._lines: list[bytes] = []
        self._is_due = False
        self.accounts: dict[str, ModelAccount] = {UNKNOWN: ModelAccount()}
        self.in_flight = 0
        self.idle = asyncio.Event()
        """Set while no request is in this gateway."""
        self.idle.set()
        self.daybook: Daybook | None = None

    def open(self, call: Call) -> None:
        self.in_flight += 1
        self.idle.clear()

    def close(self, call: Call) -> None:
        """The request is over."""
        self.in_flight -= 1
        if not self.in_flight:
            self.idle.set()
        now = self._clock()
        usage = read_usage(call.head, call.tail) if call.tail else Usage()
        account = self.accounts.get(call.model)
        if account is None:
            account = self.accounts[call.model] = ModelAccount()
        self._add(account, call, usage, now)
        if self.daybook is not None and call.model != UNKNOWN:
            self.daybook.add(call.model, call.caller, usage)
        self._log(call, usage, now)

    def forget(self, model: str) -> None:
        """The Model is deleted: its series end."""
        self.accounts.pop(model, None)

    def _add(self, account: ModelAccount, call: Call, usage: Usage, now: float) -> None:
        outcome = call.error or str(call.status)
        account.requests[outcome] = account.requests.get(outcome, 0) + 1
        account.retries += call.retries
        account.abandoned += call.error == "client_gone"
        account.prompt_tokens += usage.prompt or 0
        account.completion_tokens += usage.completion or 0
        account.total_s.observe(now - call.began)
        if call.sent:
            account.queue_s.observe(call.sent - call.began)
        if call.first:
            account.first_s.observe(call.first - call.began)

    def _log(self, call: Call, usage: Usage, now: float) -> None:
        took = now - (call.first or now)
        tokens = usage.completion
        line = {
            "time": _stamp(time.time()),
            "request": call.id,
            "caller": call.caller,
            "model": call.model,
            "path": call.path,
            "stream": call.stream,
            "runner": call.runner,
            "status": call.status,
            "error": call.error,
            "prompt_tokens": usage.prompt,
            "completion_tokens": tokens,
            "cached_tokens": usage.cached,
            "events": call.events,
            "finish": usage.finish,
            "tokens_per_s": round(tokens / took, 1)
            if tokens and call.stream and took > 0
            else None,
            "queue_s": round(call.sent - call.began, 4) if call.sent else None,
            "first_s": round(call.first - call.began, 4) if call.first else None,
            "total_s": round(now - call.began, 4),
            "bytes_in": call.bytes_in,
            "bytes_out": call.bytes_out,
            "retries": call.retries,
        }
        self._lines.append(self._encode(line))
        if len(self._lines) >= FLUSH_LINES:
            self.flush()
        elif not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(FLUSH_S, self.flush)

    def flush(self) -> None:
        """Write the lines that are due."""
        self._is_due = False
        lines, self._lines = self._lines, []
        if lines:
            self._write(b"\n".join(lines) + b"\n")


_second = -1
_text = ""


def _stamp(now: float) -> str:
    """RFC 3339 with milliseconds; the whole second is formatted once."""
    global _second, _text
    second = int(now)
    if second != _second:
        _second, _text = second, datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{_text}.{int((now - second) * 1000):03d}Z"
