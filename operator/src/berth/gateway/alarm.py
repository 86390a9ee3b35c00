"""Who is told that an answer has stopped coming? The push URL, once for each request.

Looked at every few seconds from outside, so that no chunk of an answer costs anything more.
"""

import asyncio
import json
import logging
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any, Protocol
from urllib.parse import urlsplit

log = logging.getLogger(__name__)
PUSH_TIMEOUT_S = 5.0


class Watched(Protocol):
    """A request that a runner has, or waits for one."""

    @property
    def progress(self) -> int | None:
        """Bytes of its answer so far; None while no runner has it."""

    def facts(self) -> dict[str, Any]:
        """What may be told: names, never text."""


class Alarm:
    """Requests whose answer has not grown for ``after_s`` seconds."""

    def __init__(self, push: Callable[[dict[str, Any]], None], after_s: float) -> None:
        self._push = push
        self._after_s = after_s
        self._seen: dict[Watched, tuple[int, float]] = {}
        self._told: set[Watched] = set()

    def look(self, live: Iterable[Watched], now: float) -> None:
        """Compare with the look before, and tell of what has just become a stall."""
        before, self._seen = self._seen, {}
        for one in live:
            progress = one.progress
            if progress is None:
                continue
            size, since = before.get(one, (-1, now))
            if size != progress:
                since = now
            self._seen[one] = (progress, since)
            if now - since >= self._after_s and one not in self._told:
                self._told.add(one)
                facts = {"event": "stall", "seconds": round(now - since), "bytes": progress}
                self._push({**facts, **one.facts()})
        self._told &= self._seen.keys()


def pusher(url: str) -> Callable[[dict[str, Any]], None]:
    """A function that sends facts to the URL, without waiting for it. The log never has the URL's path."""
    running: set[asyncio.Task[None]] = set()

    async def send(facts: dict[str, Any]) -> None:
        try:
            await asyncio.to_thread(_post, url, json.dumps(facts).encode())
        except (OSError, ValueError) as err:
            log.warning("push to %s failed: %s", urlsplit(url).hostname, type(err).__name__)

    def push(facts: dict[str, Any]) -> None:
        log.warning("%s", facts)
        task = asyncio.ensure_future(send(facts))
        running.add(task)
        task.add_done_callback(running.discard)

    return push


def _post(url: str, body: bytes) -> None:
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError("not an http URL")
    request = urllib.request.Request(
        url, data=body, headers={"Content-Type": "application/json"}, method="POST"
    )
    urllib.request.urlopen(request, timeout=PUSH_TIMEOUT_S).close()
