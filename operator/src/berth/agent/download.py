"""How does one file arrive, whatever the source does? Ask, judge the answer, write, ask again."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from berth.agent.answer import Answer, Complete, StartAgain, Take, bare_etag, read_answer
from berth.agent.courier import Courier
from berth.agent.fetch_errors import (
    FetchError,
    HashMismatchError,
    SourceChangedError,
    SourceUnreachableError,
)
from berth.agent.partial import Partial
from berth.units import show_bytes

FRUITLESS_ATTEMPTS = 6
"""How many attempts in a row may bring nothing worth counting before it is given up."""
FRUIT = 1 << 20
"""Bytes that make an attempt worth it; of smaller files, a thousandth."""
REPORT_S = 0.25
"""Between two reports of progress."""

Progress = Callable[[int, int, float], None]
"""``progress(done, total, rate)`` in bytes, bytes and bytes a second; total 0: not told."""


@dataclass(frozen=True)
class FileRef:
    """One file of a source. ``name`` is how the engine will see it, and may hold folders.

    ``sha256`` None: a plain URL whose hash nobody told; it is computed. ``etag`` None: any.
    """

    name: str
    url: str
    size: int | None = None
    sha256: str | None = None
    etag: str | None = None
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers for the URL's own origin, such as Authorization."""


class Meter:
    """Tells progress, not too often; the rate is over the last few seconds."""

    def __init__(self, tell: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._clock = tell, clock
        self._rate, self._at, self._done = 0.0, clock(), -1

    def show(self, done: int, total: int | None) -> None:
        """Report if it is time to, or if it is the end."""
        now = self._clock()
        passed = now - self._at
        if self._done >= 0 and passed < REPORT_S and done != total:
            return
        if self._done >= 0 and passed > 0:
            fresh = max(0, done - self._done) / passed
            # A weight that forgets in about four seconds, however often it is told.
            share = min(1.0, passed / 4.0) if self._rate else 1.0
            self._rate += share * (fresh - self._rate)
        self._at, self._done = now, done
        self._tell(done, total or 0, self._rate)


class Download:
    """One file from its source into a partial file. `run` returns the SHA-256 once it is right."""

    def __init__(
        self,
        file: FileRef,
        partial: Partial,
        courier: Courier,
        *,
        reserve: Callable[[int], Awaitable[None]],
        meter: Meter,
        backoff: Callable[[int], float],
    ) -> None:
        self._file, self._partial, self._courier = file, partial, courier
        self._reserve, self._meter, self._backoff = reserve, meter, backoff
        self._size = file.size
        self.version = ""
        """The bare ETag of the last answer."""

    async def run(self) -> str:
        """Fetch and verify. Raises FetchError."""
        await self._partial.open()
        resumed = self._partial.done > 0
        while True:
            await self._fetch_all()
            digest = self._partial.sha256()
            if self._file.sha256 in (None, digest):
                return digest
            self._partial.begin(None)
            if not resumed:
                raise HashMismatchError(
                    f"{self._file.name}: sha256 is {digest}, {self._file.sha256} was promised"
                )
            # The part that was here may be what is wrong: once more, all of it from the source.
            resumed = False

    async def _fetch_all(self) -> None:
        fruitless, again = 0, 0
        while not self._is_whole():
            before = self._partial.done
            try:
                meaning = await self._attempt()
                if meaning is None:
                    return
                again += 1
                error: FetchError = SourceUnreachableError(f"no usable answer: {meaning.why}")
            except FetchError as err:
                if not err.is_transient:
                    raise
                error = err
            gained = self._partial.done - before
            fruitless = (
                0 if gained >= min(FRUIT, (self._size or FRUIT) // 1000 + 1) else fruitless + 1
            )
            if fruitless >= FRUITLESS_ATTEMPTS or again >= FRUITLESS_ATTEMPTS:
                raise SourceUnreachableError(
                    f"{self._file.name}: given up after {fruitless or again} attempts: {error}"
                ) from error
            await asyncio.sleep(self._backoff(fruitless))

    def _is_whole(self) -> bool:
        return self._size is not None and self._partial.done == self._size and self._size > 0

    async def _attempt(self) -> StartAgain | None:
        """One request. None: everything that the source has is here."""
        partial = self._partial
        async with self._courier.ask(self._file.url, self._headers(), self._file.credentials) as (
            answer,
            body,
        ):
            self._check_version(answer)
            self.version = answer.version
            meaning = read_answer(answer, partial.have(self._size))
            if isinstance(meaning, FetchError):
                raise meaning
            if isinstance(meaning, StartAgain):
                # With nothing here the next request has no range.
                partial.begin(None)
                return meaning
            if isinstance(meaning, Take):
                await self._take(meaning, answer, body)
            elif isinstance(meaning, Complete):
                self._size = partial.done
        return None

    def _headers(self) -> dict[str, str]:
        # identity: a compressed body would be neither the file nor countable in its bytes.
        headers = {"Accept-Encoding": "identity"}
        if self._partial.done:
            headers["Range"] = f"bytes={self._partial.done}-"
            if self._partial.etag:
                headers["If-Range"] = self._partial.etag
        return headers

    def _check_version(self, answer: Answer) -> None:
        """The hub tells the digest before the first byte: do not fetch what is wrong already."""
        linked = answer.headers.get("x-linked-etag", "").strip('"')
        if len(linked) == 64 and self._file.sha256 and linked != self._file.sha256:
            raise SourceChangedError(
                f"{self._file.name}: the source now has sha256 {linked}, "
                f"{self._file.sha256} was promised"
            )
        wanted, found = bare_etag(self._file.etag), answer.version
        if self._file.sha256 is None and wanted and found and found != wanted:
            raise SourceChangedError(
                f"{self._file.name}: the source's ETag is {found}, {wanted} was promised"
            )

    async def _take(self, take: Take, answer: Answer, body: AsyncIterator[bytes]) -> None:
        partial = self._partial
        if take.start == 0:
            partial.begin(answer.etag)
        elif partial.etag is None:
            partial.note(answer.etag)
        if take.size is not None:
            await self._reserve(take.size - partial.done)
        try:
            async for chunk in body:
                if take.size is not None and partial.arrived + len(chunk) > take.size:
                    raise self._too_long(take.size)
                await partial.add(chunk)
                self._meter.show(partial.arrived, take.size)
        finally:
            await partial.flush()
        if take.size is not None and partial.done < take.size:
            raise SourceUnreachableError(
                f"the source ended after {partial.done} of {take.size} bytes"
            )
        self._size = partial.done
        self._meter.show(partial.done, partial.done)

    def _too_long(self, size: int) -> SourceChangedError:
        return SourceChangedError(
            f"{self._file.name}: the source sends more than the {show_bytes(size)} promised"
        )
