"""How are strangers' headers read without risk to the program that asks?

Each is read in a child process with limits (512 MiB of address space, 10 s of CPU, 60 s in all) and without
this process's environment, so neither the API token nor anything else that matters is within its reach.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from berth.headers.errors import HeaderError, HeaderReason
from berth.headers.request import HeaderRequest, HeaderResult, HubSource, UrlSource

DEADLINE_S = 60.0
MAX_ANSWER = 1 << 20
_KEPT = ("PATH", "LANG", "LC_ALL", "SSL_CERT_FILE", "SSL_CERT_DIR", "TZ")
"""Variables that a child is given: none of them is a secret."""


class HeaderPool:
    """Reads headers in child processes: ``total`` at once, ``per_host`` and ``per_namespace`` of them."""

    def __init__(
        self,
        *,
        total: int = 4,
        per_host: int = 2,
        per_namespace: int = 2,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._total = asyncio.Semaphore(total)
        self._per_host = per_host
        self._per_namespace = per_namespace
        self._places: dict[str, tuple[asyncio.Semaphore, int]] = {}
        self._deadline_s = deadline_s

    async def read(self, request: HeaderRequest) -> HeaderResult:
        """What the source holds. Raises HeaderError; after the deadline with SourceTooSlow."""
        async with (
            self._place(f"namespace {request.namespace}", self._per_namespace),
            self._place(f"host {_host(request)}", self._per_host),
            self._total,
        ):
            try:
                async with asyncio.timeout(self._deadline_s):
                    return await _read_in_child(request)
            except TimeoutError as err:
                message = f"the header was not read within {self._deadline_s:.0f} s"
                raise HeaderError(HeaderReason.SOURCE_TOO_SLOW, message) from err

    @asynccontextmanager
    async def _place(self, key: str, most: int) -> AsyncIterator[None]:
        """One of ``most`` places under ``key``; the key is forgotten once nobody holds or wants one."""
        places, users = self._places.get(key, (asyncio.Semaphore(most), 0))
        self._places[key] = (places, users + 1)
        try:
            async with places:
                yield
        finally:
            users = self._places[key][1] - 1
            if users:
                self._places[key] = (places, users)
            else:
                del self._places[key]


def _host(request: HeaderRequest) -> str:
    match request.source:
        case HubSource():
            return urlsplit(request.endpoint).netloc
        case UrlSource(uri=uri):
            return urlsplit(uri).netloc
        case _:
            return ""


async def _read_in_child(request: HeaderRequest) -> HeaderResult:
    environment = {key: os.environ[key] for key in _KEPT if key in os.environ}
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-m", "berth.headers.child",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        env=environment, close_fds=True, start_new_session=True,
    )  # fmt: skip
    try:
        return _parse(await _talk(child, json.dumps(request.to_json()).encode()))
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def _talk(child: asyncio.subprocess.Process, question: bytes) -> bytes:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(question)
    child.stdin.close()
    parts, total = [], 0
    while piece := await child.stdout.read(1 << 16):
        parts.append(piece)
        total += len(piece)
        if total > MAX_ANSWER:
            raise HeaderError(
                HeaderReason.INVALID_HEADER, "the header's facts are longer than can be kept"
            )
    return b"".join(parts)


def _parse(answer: bytes) -> HeaderResult:
    """The child's answer; a child that died without one ran into its limits."""
    try:
        row = json.loads(answer)
    except ValueError as err:
        raise HeaderError(
            HeaderReason.INVALID_HEADER, "the header needs more memory or time than it may take"
        ) from err
    if "result" in row:
        return HeaderResult.from_json(row["result"])
    raise HeaderError(HeaderReason(row["reason"]), str(row["message"]))
