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


def request_head(
    *,
    method: str,
    target: str,
    headers: RawHeaders,
    size: int,
    request_id: str,
    forwarded_for: str,
) -> bytes:
    """The head for the runner; ``Host`` is added by `addressed`."""
    named = _named_by_connection(headers)
    lines: list[bytes] = []
    hops = b""
    for name, value in headers:
        lower = name.lower()
        if lower in NOT_TO_RUNNER or lower in named:
            if lower == b"x-forwarded-for":
                hops = value + b", "
            continue
        lines += (name, b": ", value, b"\r\n")
    return (
        b"%b %b HTTP/1.1\r\n%bX-Request-Id: %b\r\nX-Forwarded-For: %b%b\r\nContent-Length: %d\r\n"
        % (
            method.encode(),
            target.encode(),
            b"".join(lines),
            request_id.encode("latin-1"),
            hops,
            forwarded_for.encode(),
            size,
        )
    )


def addressed(head: bytes, host: str, port: int) -> bytes:
    """The head, complete for one runner."""
    return b"%bHost: %b:%d\r\n\r\n" % (head, host.encode(), port)


class AnswerHead:
    """A runner's answer head, read once: what to pass on, its length, whether it is a stream."""

    __slots__ = ("content_type", "is_stream", "length", "lines")

    def __init__(self, headers: list[tuple[bytes, bytes]], request_id: str) -> None:
        self.length: int | None = None
        self.content_type = b""
        self.is_stream = False
        lines = []
        named = _named_by_connection(headers)
        for name, value in headers:
            lower = name.lower()
            if lower in NOT_TO_CLIENT or lower in named:
                if lower == b"content-length" and value.isdigit():
                    self.length = int(value)
                continue
            if lower == b"content-type":
                self.content_type = value
                self.is_stream = value[:17].lower() == b"text/event-stream"
            lines.append(b"%b: %b\r\n" % (name, value))
        lines.append(b"X-Request-Id: %b\r\n" % request_id.encode("latin-1"))
        if self.is_stream:
            self.length = None
            skip = (b"cache-control:", b"x-accel-buffering:")
            lines = [line for line in lines if not line.lower().startswith(skip)] + STREAM_LINES
        self.lines = lines


def _named_by_connection(headers: RawHeaders) -> frozenset[bytes]:
    """Headers that ``Connection`` names are of this hop too."""
    found: frozenset[bytes] = frozenset()
    for name, value in headers:
        if len(name) == 10 and name.lower() == b"connection":
            words = frozenset(word.strip().lower() for word in value.split(b","))
            found |= words - {b"keep-alive", b"close"}
    return found
