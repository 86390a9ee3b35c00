"""How is a header read forwards, piece by piece, without holding more than one piece?"""

from collections.abc import Callable
from struct import Struct

from berth.headers.errors import invalid_gguf

Read = Callable[[int, int], bytes]
"""``read(offset, length)``: the bytes there, fewer only where the file ends."""

STEP = 1 << 20
"""Bytes fetched at once: what may be fetched beyond the header's end."""

MAX_HEADER = 128 << 20
"""No header is longer. The longest in the field (a vocabulary of 262,144 with merges) has about 20 MB."""


class Window:
    """A forward-only view of a file: :meth:`take` and :meth:`skip` fetch further pieces as they need them."""

    def __init__(self, read: Read, size: int) -> None:
        self._read = read
        self.size = size
        self.start = 0
        self.data = b""
        self.at = 0
        self.fetched = 0

    @property
    def offset(self) -> int:
        """The offset in the file of the next byte."""
        return self.start + self.at

    @property
    def left(self) -> int:
        """Bytes between the next one and the file's end."""
        return self.size - self.offset

    def need(self, count: int) -> None:
        """Have ``count`` bytes at hand. Raises HeaderError where the file ends before."""
        if len(self.data) - self.at >= count:
            return
        if count > self.left:
            raise invalid_gguf(
                f"the header ends at byte {self.size}, {count - self.left} bytes too early"
            )
        self._advance()
        while len(self.data) < count:
            self._fetch()

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        self.need(count)
        begin = self.at
        self.at = begin + count
        return self.data[begin : self.at]

    def unpack(self, form: Struct) -> int:
        """The next number."""
        self.need(form.size)
        value = form.unpack_from(self.data, self.at)[0]
        self.at += form.size
        return value  # type: ignore[no-any-return]

    def skip(self, count: int) -> None:
        """Pass over ``count`` bytes; what lies between is fetched only where it shares a piece."""
        if count > self.left:
            raise invalid_gguf(
                f"a length of {count} bytes at byte {self.offset} exceeds the {self.left} left"
            )
        if self.at + count <= len(self.data):
            self.at += count
            return
        self.start, self.data, self.at = self.offset + count, b"", 0
        self._check_bound()

    def _advance(self) -> None:
        self.start, self.data, self.at = self.offset, self.data[self.at :], 0
        self._check_bound()

    def _check_bound(self) -> None:
        if self.start > MAX_HEADER:
            raise invalid_gguf(f"the header is longer than {MAX_HEADER >> 20} MiB")

    def _fetch(self) -> None:
        begin = self.start + len(self.data)
        wanted = min(STEP, self.size - begin)
        piece = self._read(begin, wanted)
        if len(piece) != wanted:
            raise invalid_gguf(f"the file ended at byte {begin + len(piece)} of {self.size}")
        self.fetched += wanted
        self.data += piece
