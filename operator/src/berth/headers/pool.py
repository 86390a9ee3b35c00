"""How are strangers' headers read without risk to the program that asks?

Each is read in a child process with limits (512 MiB of address space, 10 s of CPU, 60 s in all) and without
this process's environment, so neither the API token nor anything else that matters is within its reach.
"""

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from berth.headers.errors import HeaderError, HeaderReason
from berth.headers.request import HeaderRequest, HeaderResult, HubSource, UrlSource

DEADLINE_S = 60.0
MAX_ANSWER = 1 << 20
_KEPT = ("PATH", "LANG", "LC_ALL", "SSL_CERT_FILE", "SSL_CERT_DIR", "TZ")
"""Variables that a child is given: none of them is a secret."""

Place = tuple[str, str]
"""What of (all, a host, a namespace), and which."""
_ALL: Place = ("", "")


class HeaderPool:
    """Reads headers in child processes: ``total`` at once, ``per_host`` and ``per_namespace`` of them.

    One silent host takes less than one namespace may, and one namespace less than all there is.
    """

    def __init__(
        self,
        *,
        total: int = 4,
        per_host: int = 2,
        per_namespace: int = 3,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._most = {"": total, "host": per_host, "namespace": per_namespace}
        self._taken: Counter[Place] = Counter()
        self._line: dict[asyncio.Future[None], tuple[Place, ...]] = {}
        self._deadline_s = deadline_s

    async def read(self, request: HeaderRequest) -> HeaderResult:
        """What the source holds. Raises HeaderError; after the deadline with SourceTooSlow."""
        async with self._turn(_ALL, ("namespace", request.namespace), ("host", _host(request))):
            try:
                async with asyncio.timeout(self._deadline_s):
                    return await _read_in_child(request)
            except TimeoutError as err:
                message = f"the header was not read within {self._deadline_s:.0f} s"
                raise HeaderError(HeaderReason.SOURCE_TOO_SLOW, message) from err

    @asynccontextmanager
    async def _turn(self, *places: Place) -> AsyncIterator[None]:
        """In the order of arrival, but who waits for one place holds none of the others."""
        turn = asyncio.get_running_loop().create_future()
        self._line[turn] = places
        self._call()
        try:
            await turn
            yield
        finally:
            if self._line.pop(turn, None) is None:
                self._taken.subtract(places)
                self._taken += Counter()  # Forgets places that nobody holds.
            self._call()

    def _call(self) -> None:
        for turn, places in list(self._line.items()):
            if self._taken[_ALL] >= self._most[""]:
                return
            if all(self._taken[place] < self._most[place[0]] for place in places):
                del self._line[turn]
                self._taken.update(places)
                if not turn.done():
                    turn.set_result(None)


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
