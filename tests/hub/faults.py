"""In which ways can a file server misbehave? Each is a switch."""

from dataclasses import dataclass, field, fields
from typing import Any


@dataclass
class Faults:
    """What goes wrong while files are served. The defaults are a well-behaved server."""

    ignores_range: bool = False
    """Answers 200 with the whole file whatever range was asked (also a redirect that drops it)."""
    range_from_start: bool = False
    """Answers a range with 206, ``bytes 0-N/N`` and the whole file."""
    wrong_total: int = 0
    """Added to the total in Content-Range."""
    bare_416: bool = False
    """A 416 without the Content-Range that tells the size."""
    cut_after: int | None = None
    """Cuts the connection after so many bytes of a body …"""
    cut_times: int | None = None
    """… in so many answers; None: in all."""
    rate: float | None = None
    """Bytes a second."""
    corrupt_at: int | None = None
    """The byte at this offset of the file is flipped."""
    hang_after: int | None = None
    """Sends so many bytes of a body, then nothing, with the connection open."""
    hangs: bool = False
    """Never answers at all."""
    statuses: list[int] = field(default_factory=list)
    """The next answers are these errors, one each."""
    no_etag: bool = False
    no_length: bool = False
    """Chunked, without Content-Length."""

    def set(self, values: dict[str, Any]) -> None:
        """Go back to the defaults, then take these values."""
        fresh = Faults(**values)
        for entry in fields(Faults):
            setattr(self, entry.name, getattr(fresh, entry.name))

    def take_cut(self) -> int | None:
        """Where this answer is to be cut, if it is; counts it."""
        if self.cut_after is None or self.cut_times == 0:
            return None
        if self.cut_times is not None:
            self.cut_times -= 1
        return self.cut_after
