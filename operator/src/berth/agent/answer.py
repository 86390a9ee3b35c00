"""What does an answer to a ranged request mean for the bytes that are here already? Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from berth.agent.fetch_errors import (
    FetchError,
    SourceChangedError,
    SourceNotFoundError,
    SourceUnauthorizedError,
    SourceUnreachableError,
)

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_UNSATISFIED = re.compile(r"bytes \*/(\d+)")


@dataclass(frozen=True)
class Have:
    """What is here and what is known. Sizes in bytes; ``etag`` is of the answer they came from."""

    done: int
    size: int | None
    etag: str | None


@dataclass(frozen=True)
class Answer:
    """Status and headers (names in lower case) of the last answer, redirects followed."""

    status: int
    headers: Mapping[str, str]

    @property
    def etag(self) -> str | None:
        """The strong validator; a weak one does not promise equal bytes, so it counts as none."""
        etag = self.headers.get("etag")
        return None if etag is None or etag.startswith("W/") else etag

    @property
    def version(self) -> str:
        """The validator, weak or strong, bare: what tells one state of a URL from another."""
        return bare_etag(self.headers.get("etag"))


@dataclass(frozen=True)
class Take:
    """Write the body at ``start``; the file will have ``size`` bytes (None: not told)."""

    start: int
    size: int | None


@dataclass(frozen=True)
class Complete:
    """Nothing is missing: verify what is here."""


@dataclass(frozen=True)
class StartAgain:
    """The bytes here are of no use with this source: ask for the whole file, without a range."""

    why: str


Meaning = Take | Complete | StartAgain | FetchError


def read_answer(answer: Answer, have: Have) -> Meaning:
    """What the answer means.

    1. 200: the whole file, from byte 0, whatever range was asked.
    2. 206: the rest, if it begins where we are, of the same size and the same ETag. From byte 0 to
       the end it is the whole file. Anything else is not to be trusted: start again.
    3. 416: complete if the source's size is ours; otherwise start again.
    4. Everything else is an error with its reason.
    """
    if answer.status == 200:
        return _whole(_number(answer.headers.get("content-length")), have)
    if answer.status == 206:
        return _part(answer, have)
    if answer.status == 416:
        return _unsatisfied(answer, have)
    return _refused(answer)


def _whole(length: int | None, have: Have) -> Meaning:
    if have.size is not None and length is not None and length != have.size:
        return _changed(length, have.size)
    return Take(0, have.size if length is None else length)


def _part(answer: Answer, have: Have) -> Meaning:
    match = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
    if match is None:
        return StartAgain("206 without a readable Content-Range")
    start, end = int(match[1]), int(match[2])
    total = None if match[3] == "*" else int(match[3])
    if total is not None and end >= total:
        return StartAgain(f"206 for bytes {start}-{end} of {total}")
    if have.size is not None and total is not None and total != have.size:
        return StartAgain(f"206 says {total} bytes, {have.size} were promised")
    if have.etag is not None and answer.etag is not None and answer.etag != have.etag:
        return StartAgain("the ETag changed")
    if start == have.done:
        return Take(start, have.size if total is None else total)
    if start == 0 and total == end + 1:
        return Take(0, total)
    return StartAgain(f"206 begins at byte {start}, not {have.done}")


def _unsatisfied(answer: Answer, have: Have) -> Meaning:
    match = _UNSATISFIED.fullmatch(answer.headers.get("content-range", ""))
    size = int(match[1]) if match else have.size
    if size == have.done and have.size in (None, size):
        return Complete()
    return StartAgain(f"416 with {have.done} bytes here")


def _refused(answer: Answer) -> FetchError:
    told = answer.headers.get("x-error-message", "")[:200]
    text = f"the source answered {answer.status}" + (f": {told}" if told else "")
    if answer.status in (401, 403):
        return SourceUnauthorizedError(f"{text}; check the source's tokenSecretRef")
    if answer.status in (404, 410):
        return SourceNotFoundError(text)
    return SourceUnreachableError(text)


def _changed(found: int, promised: int) -> SourceChangedError:
    return SourceChangedError(f"the source now has {found} bytes, {promised} were promised")


def bare_etag(etag: str | None) -> str:
    """An ETag without quotes and without the mark of a weak one; empty for none."""
    return (etag or "").removeprefix("W/").strip('"')


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
