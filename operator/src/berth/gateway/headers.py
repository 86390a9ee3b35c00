"""Which headers pass, which end here, and which does the gateway add? The rules of HTTP, as bytes."""

from collections.abc import Iterable

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
NOT_TO_RUNNER = HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"expect",
    # Compressed answers could not be counted, and streams would be held back by the compressor.
    b"accept-encoding",
    # Keys are this gateway's own: an engine, its log and its crash dumps never see them.
    b"authorization",
    b"x-api-key",
    b"x-request-id",
    b"x-forwarded-for",
}
NOT_TO_CLIENT = HOP_BY_HOP | {b"content-length", b"x-request-id"}
STREAM_LINES = [b"Cache-Control: no-cache\r\n", b"X-Accel-Buffering: no\r\n"]
"""Said of every event stream: reverse proxies on the way must neither hold nor keep it."""

RawHeaders = Iterable[tuple[bytes, bytes]]
NAMES_MAX = 4096


class Filter:
    """Which header names stay behind, by the bytes that came; each spelling is judged once."""

    def __init__(self, dropped: frozenset[bytes], noted: frozenset[bytes]) -> None:
        self._dropped = dropped
        self._noted = noted
        self._seen: dict[bytes, bytes] = {}

    def note(self, name: bytes) -> bytes:
        """The lower-case name when somebody must look at the header, ``b""`` when it just passes."""
        note = self._seen.get(name)
        if note is None:
            lower = name.lower()
            note = lower if lower in self._dropped or lower in self._noted else b""
            if len(self._seen) < NAMES_MAX:
                self._seen[name] = note
        return note


_TO_RUNNER = Filter(NOT_TO_RUNNER, frozenset())
_TO_CLIENT = Filter(
    NOT_TO_CLIENT, frozenset({b"content-type", b"cache-control", b"x-accel-buffering"})
)


def request_head(
    *,
    method: str,
    target: str,
    headers: RawHeaders,
    size: int,
    request_id: str,
    forwarded_for: str,
) -> bytes:
    """The head for the runner, to be completed by `addressed`."""
    note = _TO_RUNNER.note
    lines = [f"{method} {target} HTTP/1.1\r\n".encode("latin-1")]
    hops = ""
    for name, value in headers:
        special = note(name)
        if not special:
            lines += (name, b": ", value, b"\r\n")
        elif special == b"x-forwarded-for":
            hops += value.decode("latin-1") + ", "
        elif special == b"connection" and _names_others(value):
            return request_head(
                method=method,
                target=target,
                headers=_without_named(headers, value),
                size=size,
                request_id=request_id,
                forwarded_for=forwarded_for,
            )
    lines.append(
        f"X-Request-Id: {request_id}\r\nX-Forwarded-For: {hops}{forwarded_for}\r\n"
        f"Content-Length: {size}\r\nHost: ".encode("latin-1")
    )
    return b"".join(lines)


def addressed(head: bytes, host: str, port: int) -> bytes:
    """The head, complete for one runner."""
    return b"%b%b:%d\r\n\r\n" % (head, host.encode(), port)


class AnswerHead:
    """A runner's answer head, read once: what to pass on, its length, whether it is a stream."""

    __slots__ = ("is_stream", "length", "lines")

    def __init__(self, headers: list[tuple[bytes, bytes]], request_id: str) -> None:
        self.length: int | None = None
        self.is_stream = False
        self.lines: list[bytes] = []
        lines, note = self.lines, _TO_CLIENT.note
        kept: list[bytes] = []
        for name, value in headers:
            special = note(name)
            if not special:
                lines += (name, b": ", value, b"\r\n")
            elif special == b"content-length":
                self.length = int(value) if value.isdigit() else None
            elif special == b"content-type":
                lines += (name, b": ", value, b"\r\n")
                self.is_stream = value[:17].lower() == b"text/event-stream"
            elif special in (b"cache-control", b"x-accel-buffering"):
                kept += (name, b": ", value, b"\r\n")
            elif special == b"connection" and _names_others(value):
                self.__init__(_without_named(headers, value), request_id)  # type: ignore[misc]
                return
        lines.append(b"X-Request-Id: %b\r\n" % request_id.encode("latin-1"))
        if self.is_stream:
            self.length = None
            lines += STREAM_LINES
        else:
            lines += kept


def _names_others(connection: bytes) -> bool:
    return connection.lower() not in (b"keep-alive", b"close")


def _without_named(headers: RawHeaders, connection: bytes) -> list[tuple[bytes, bytes]]:
    """Headers that ``Connection`` names are of this hop too."""
    named = {word.strip().lower() for word in connection.split(b",")} | {b"connection"}
    return [(name, value) for name, value in headers if name.lower() not in named]
