"""How is a file behind a URL read by ranges, whatever its server makes of them?"""

import re
from collections.abc import Iterator
from contextlib import ExitStack

from berth.headers.errors import HeaderError, HeaderReason
from berth.headers.http import Answer, GuardedClient
from berth.headers.request import FileRef

FIRST = 64 << 10
"""Bytes of the first range: enough for a safetensors shard's header, and for a size and an ETag."""
MAX_STREAMED = 256 << 20
"""Bytes read at most from a server that ignores ranges: a header's limit and a piece."""
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)$")
_DIGEST = re.compile(r'^"?([0-9a-f]{64})"?$')


class RemoteFile:
    """A file behind a URL: ``size`` is known after the first range, which is fetched when it is made."""

    def __init__(self, client: GuardedClient, url: str, path: str) -> None:
        self._client = client
        self.url = url
        self.path = path
        self._kept: tuple[int, bytes] = (0, b"")
        self._stream: Iterator[bytes] | None = None
        self._exit = ExitStack()
        answer = self._exit.enter_context(
            self._client.open("GET", url, {"range": f"bytes=0-{FIRST - 1}"})
        )
        self.headers = answer.headers
        if answer.response.status_code == 206:
            self.size = _total(answer, 0)
            self._kept = (0, _body(answer, min(FIRST, self.size)))
            self._exit.close()
        else:
            self.size = _whole(answer)
            self._stream = answer.response.iter_raw(FIRST)

    def close(self) -> None:
        """Give the connection back."""
        self._exit.close()

    def ref(self) -> FileRef:
        """What tells this file's content from another's."""
        etag = self.headers.get("x-linked-etag") or self.headers.get("etag")
        match = _DIGEST.match(etag or "")
        return FileRef(
            self.url,
            self.path,
            self.size,
            match[1] if match else None,
            (etag or "").strip('"') or None,
        )

    def read(self, offset: int, length: int) -> bytes:
        """``length`` bytes at ``offset``; fewer only at the file's end. Raises HeaderError."""
        length = min(length, self.size - offset)
        if length <= 0:
            return b""
        if self._stream is not None:
            return self._streamed(offset, length)
        start, kept = self._kept
        if start <= offset < start + len(kept):
            head = kept[offset - start : offset - start + length]
            return (
                head
                if len(head) == length
                else head + self._fetch(offset + len(head), length - len(head))
            )
        return self._fetch(offset, length)

    def _fetch(self, offset: int, length: int) -> bytes:
        asked = {"range": f"bytes={offset}-{offset + length - 1}"}
        with self._client.open("GET", self.url, asked) as answer:
            if answer.response.status_code != 206 or _total(answer, offset) != self.size:
                raise HeaderError(
                    HeaderReason.SOURCE_FAILED, f"{self.path} changed while it was read"
                )
            return _body(answer, length)

    def _streamed(self, offset: int, length: int) -> bytes:
        """The same from a server that sends the whole file: read on, keep only what is still asked for."""
        start, kept = self._kept
        if offset < start:
            raise HeaderError(
                HeaderReason.SOURCE_FAILED, f"the server of {self.path} does not serve ranges"
            )
        assert self._stream is not None
        while start + len(kept) < offset + length:
            piece = next(self._stream, b"")
            if not piece or start > MAX_STREAMED:
                raise HeaderError(
                    HeaderReason.SOURCE_FAILED, f"{self.path} ended at byte {start + len(kept)}"
                )
            drop = min(max(offset - start, 0), len(kept))
            start, kept = start + drop, kept[drop:] + piece
        self._kept = (start, kept)
        return kept[offset - start : offset - start + length]


def _total(answer: Answer, offset: int) -> int:
    """The file's size by ``Content-Range``. Servers that write ``bytes 0-N/N`` are off by one and are refused."""
    match = _RANGE.match(answer.response.headers.get("content-range", ""))
    if (
        match is None
        or int(match[1]) != offset
        or not int(match[1]) <= int(match[2]) < int(match[3])
    ):
        raise HeaderError(
            HeaderReason.SOURCE_FAILED, f"{answer.url.partition('?')[0]} answered a wrong range"
        )
    return int(match[3])


def _whole(answer: Answer) -> int:
    length = answer.response.headers.get("content-length", "")
    if not length.isdigit():
        raise HeaderError(
            HeaderReason.SOURCE_FAILED, f"{answer.url.partition('?')[0]} does not say its size"
        )
    return int(length)


def _body(answer: Answer, length: int) -> bytes:
    """Exactly ``length`` bytes of the body; a server that sends more or fewer is refused."""
    parts, total = [], 0
    for piece in answer.response.iter_raw(FIRST):
        parts.append(piece)
        total += len(piece)
        if total > length:
            break
    if total != length:
        raise HeaderError(
            HeaderReason.SOURCE_FAILED,
            f"{answer.url.partition('?')[0]} sent {total} bytes of {length}",
        )
    return b"".join(parts)
