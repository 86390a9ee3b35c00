"""How are a file's bytes sent: whole, by range, and with every fault of `Faults`?"""

import asyncio
import re
from dataclasses import dataclass

from aiohttp import web

from hub.faults import Faults
from hub.repos import Blob

CHUNK = 64 << 10


@dataclass(frozen=True)
class Part:
    """What is sent: bytes [start, end) of the file, with a status and its Content-Range."""

    start: int
    end: int
    status: int = 200
    content_range: str | None = None


def choose_part(asked: str | None, size: int, faults: Faults) -> Part:
    """The part that a Range header asks for, as RFC 9110 says, or as a fault has it."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", asked or "")
    if match is None or faults.ignores_range or match.groups() == ("", ""):
        return Part(0, size)
    total = size + faults.wrong_total
    first, last = match.groups()
    start = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if start >= size or start >= end:
        return Part(0, 0, 416, None if faults.bare_416 else f"bytes */{total}")
    if faults.range_from_start:
        return Part(0, size, 206, f"bytes 0-{size - 1}/{total}")
    return Part(start, end, 206, f"bytes {start}-{end - 1}/{total}")


async def send_file(
    request: web.Request, blob: Blob, faults: Faults, headers: dict[str, str]
) -> web.StreamResponse:
    """Answer GET or HEAD for one file."""
    if faults.hangs:
        await asyncio.sleep(3600)
    if faults.statuses:
        return web.Response(status=faults.statuses.pop(0))
    asked = request.headers.get("Range")
    if request.headers.get("If-Range", headers["ETag"]) != headers["ETag"]:
        asked = None  # the client has a part of another version
    part = choose_part(asked, blob.size, faults)
    head = {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream", **headers}
    if faults.no_etag:
        head.pop("ETag", None)
    if part.content_range:
        head["Content-Range"] = part.content_range
    if not faults.no_length:
        head["Content-Length"] = str(part.end - part.start)
    response = web.StreamResponse(status=part.status, headers=head)
    await response.prepare(request)
    if request.method == "HEAD" or await _send_body(request, response, blob, part, faults):
        await response.write_eof()
    return response


async def _send_body(
    request: web.Request, response: web.StreamResponse, blob: Blob, part: Part, faults: Faults
) -> bool:
    """Send the part; False when the connection was cut on purpose."""
    cut = faults.take_cut()
    stop = min(x for x in (cut, faults.hang_after, part.end - part.start) if x is not None)
    sent = 0
    while sent < stop:
        count = min(CHUNK, stop - sent)
        await response.write(_piece(blob, part.start + sent, count, faults))
        sent += count
        if faults.rate:
            await asyncio.sleep(count / faults.rate)
    if sent == part.end - part.start:
        return True
    if cut is not None and request.transport:
        # close() sends what was written; abort() might drop it and make the cut come earlier.
        request.transport.close()
        return False
    await asyncio.sleep(3600)
    return False


def _piece(blob: Blob, start: int, count: int, faults: Faults) -> bytes:
    data = blob.read(start, count)
    at = faults.corrupt_at
    if at is None or not start <= at < start + len(data):
        return data
    broken = bytearray(data)
    broken[at - start] ^= 0xFF
    return bytes(broken)
