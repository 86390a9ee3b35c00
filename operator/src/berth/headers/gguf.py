"""What does one GGUF file's header say?

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, either byte order).
Every count and length is a stranger's: each is held against the bytes left before it is used, strings are
passed over rather than kept, and nothing is allocated by a number that the file chose.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct

from berth.facts import Tensor, Value
from berth.facts.ggml import BY_ID, tensor_bytes
from berth.headers.errors import invalid_gguf
from berth.headers.window import Read, Window

MAGIC = b"GGUF"
MAX_KEYS = 65_536
MAX_TENSORS = 131_072
MAX_NAME = 63
MAX_KEY = 4096
MAX_TEXT = 1024
"""Bytes of a string value that are kept; a longer one (a chat template) is only known to be there."""
MAX_NUMBERS = 1024
"""Members of a number array that are kept: per-layer arrays are shorter, token scores longer."""
MAX_NESTING = 4
MAX_DIMENSIONS = 4
_TEXT, _ARRAY, _BOOL = 8, 9, 7
_FORMATS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}


@dataclass(slots=True)
class GgufHeader:
    """One file's header: scalar and short array values, lengths of the long arrays, tensors, where data begins."""

    size: int
    values: dict[str, Value] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    """Members of every array, kept or not."""
    texts: set[str] = field(default_factory=set)
    """Keys of strings that are too long to keep."""
    tensors: list[Tensor] = field(default_factory=list)
    header_bytes: int = 0
    fetched: int = 0
    big_endian: bool = False
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor as its table row says, before its bytes are known."""

    name: str
    kind: int
    shape: tuple[int, ...]
    offset: int


class _Reader:
    """Reads numbers and strings of one byte order from a window."""

    def __init__(self, window: Window, *, big_endian: bool) -> None:
        order = ">" if big_endian else "<"
        self.window = window
        self.u32, self.u64 = Struct(order + "I"), Struct(order + "Q")
        self.numbers = {kind: Struct(order + form) for kind, form in _FORMATS.items()}
        self.order = order

    def count(self, what: str, each: int) -> int:
        """A count of members of at least ``each`` bytes, which must fit in what is left of the file."""
        value = self.window.unpack(self.u64)
        if value * each > self.window.left:
            raise invalid_gguf(f"{value} {what} cannot fit in the {self.window.left} bytes left")
        return value

    def text(self, what: str, most: int) -> bytes:
        """A string that must be kept."""
        length = self.count(f"bytes of {what}", 1)
        if length > most:
            raise invalid_gguf(f"{what} of {length} bytes is longer than {most}")
        return self.window.take(length)

    def scalar(self, kind: int) -> int | float | bool:
        """A number. Raises HeaderError on an unknown type."""
        form = self.numbers.get(kind)
        if form is None:
            raise invalid_gguf(f"value type {kind} is unknown")
        return self.window.unpack(form)


def parse_gguf(read: Read, size: int) -> GgufHeader:
    """The header of the GGUF file of ``size`` bytes behind ``read``. Raises HeaderError (InvalidGGUF)."""
    window = Window(read, size)
    reader = _open(window)
    header = GgufHeader(size, big_endian=reader.order == ">")
    tensor_count = reader.count("tensors", 24)
    key_count = reader.count("keys", 13)
    if tensor_count > MAX_TENSORS or key_count > MAX_KEYS:
        raise invalid_gguf(
            f"{tensor_count} tensors and {key_count} keys are more than any model has"
        )
    for _ in range(key_count):
        _read_pair(reader, header)
    entries = _read_table(reader, tensor_count)
    header.header_bytes, header.fetched = window.offset, window.fetched
    _place(header, entries)
    return header


def _open(window: Window) -> _Reader:
    if window.size < 24 or window.take(4) != MAGIC:
        raise invalid_gguf("the file does not begin with GGUF")
    raw = window.take(4)
    little, big = int.from_bytes(raw, "little"), int.from_bytes(raw, "big")
    for version, is_big in ((little, False), (big, True)):
        if version in {2, 3}:
            return _Reader(window, big_endian=is_big)
    raise invalid_gguf(f"GGUF version {min(little, big)} cannot be read; 2 and 3 can")


def _read_pair(reader: _Reader, header: GgufHeader) -> None:
    key = reader.text("a key", MAX_KEY).decode("utf-8", "replace")
    if not key or key in header.values or key in header.lengths or key in header.texts:
        raise invalid_gguf(f"the key {key!r} is {'twice in the file' if key else 'empty'}")
    kind = reader.window.unpack(reader.u32)
    if kind == _TEXT:
        _read_text(reader, header, key)
    elif kind == _ARRAY:
        _read_array(reader, header, key)
    else:
        header.values[key] = reader.scalar(kind)


def _read_text(reader: _Reader, header: GgufHeader, key: str) -> None:
    length = reader.count("bytes of a string", 1)
    if length > MAX_TEXT:
        header.texts.add(key)
        reader.window.skip(length)
    else:
        header.values[key] = reader.window.take(length).decode("utf-8", "replace")


def _read_array(reader: _Reader, header: GgufHeader, key: str) -> None:
    kind = reader.window.unpack(reader.u32)
    if kind in {_TEXT, _ARRAY}:
        header.lengths[key] = _skip_members(reader, kind, depth=1)
        return
    form = reader.numbers.get(kind)
    if form is None:
        raise invalid_gguf(f"array type {kind} of {key!r} is unknown")
    length = header.lengths[key] = reader.count("array members", form.size)
    if length > MAX_NUMBERS:
        reader.window.skip(length * form.size)
        return
    raw = reader.window.take(length * form.size)
    header.values[key] = tuple(member for (member,) in form.iter_unpack(raw))


def _skip_members(reader: _Reader, kind: int, *, depth: int) -> int:
    """Passes over the members of an array of strings or of arrays; gives their count."""
    if kind == _TEXT:
        count = reader.count("strings", 8)
        _skip_texts(reader.window, reader.u64, count)
        return count
    if kind != _ARRAY:
        form = reader.numbers.get(kind)
        if form is None:
            raise invalid_gguf(f"array type {kind} is unknown")
        count = reader.count("array members", form.size)
        reader.window.skip(count * form.size)
        return count
    if depth > MAX_NESTING:
        raise invalid_gguf(f"arrays are nested deeper than {MAX_NESTING}")
    count = reader.count("arrays", 12)
    for _ in range(count):
        _skip_members(reader, reader.window.unpack(reader.u32), depth=depth + 1)
    return count


def _skip_texts(window: Window, u64: Struct, count: int) -> None:
    """Passes over ``count`` strings: the one loop that a header of tens of MB spends its time in."""
    unpack: Callable[[bytes, int], tuple[int]] = u64.unpack_from
    while count:
        window.need(8)
        data, at, last = window.data, window.at, len(window.data) - 8
        while count and at <= last:
            step = unpack(data, at)[0] + 8
            count -= 1
            at += step
        if at <= len(data):
            window.at = at
        else:
            window.at = at - step
            window.skip(step)


def _read_table(reader: _Reader, count: int) -> list[_Entry]:
    entries: dict[str, _Entry] = {}
    for _ in range(count):
        entry = _read_entry(reader)
        if entry.name in entries:
            raise invalid_gguf(f"the tensor {entry.name!r} is twice in the file")
        entries[entry.name] = entry
    return list(entries.values())


def _read_entry(reader: _Reader) -> _Entry:
    name = reader.text("a tensor's name", MAX_NAME).decode("utf-8", "replace")
    dimensions = reader.window.unpack(reader.u32)
    if not 0 < dimensions <= MAX_DIMENSIONS:
        raise invalid_gguf(
            f"the tensor {name!r} has {dimensions} dimensions; 1 to {MAX_DIMENSIONS} can be"
        )
    shape = tuple(reader.window.unpack(reader.u64) for _ in range(dimensions))
    kind = reader.window.unpack(reader.u32)
    return _Entry(name, kind, shape, reader.window.unpack(reader.u64))


def _place(header: GgufHeader, entries: list[_Entry]) -> None:
    """Gives every tensor its bytes and holds them against the file's size."""
    alignment = header.values.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise invalid_gguf(f"the alignment {alignment!r} is not a power of two")
    begin = -(-header.header_bytes // alignment) * alignment
    room = max(header.size - begin, 0)
    ends = _next_offsets(entries, room)
    for entry in entries:
        nbytes = _entry_bytes(header, entry, ends)
        if entry.offset + nbytes > room:
            raise invalid_gguf(
                f"the tensor {entry.name!r} ends at byte {begin + entry.offset + nbytes} of {header.size}"
            )
        kind = BY_ID[entry.kind].name if entry.kind in BY_ID else f"type {entry.kind}"
        header.tensors.append(Tensor(entry.name, kind, entry.shape, nbytes))


def _next_offsets(entries: list[_Entry], room: int) -> dict[int, int]:
    offsets = sorted({entry.offset for entry in entries})
    return dict(zip(offsets, [*offsets[1:], room], strict=False))


def _entry_bytes(header: GgufHeader, entry: _Entry, ends: dict[int, int]) -> int:
    """Bytes by type and shape; of a type not known here, the space up to the next tensor."""
    found = BY_ID.get(entry.kind)
    if found is None:
        header.warnings.append(
            f"tensor {entry.name} has the unknown type {entry.kind}: sized by its place"
        )
        return max(ends[entry.offset] - entry.offset, 0)
    if entry.shape[0] % found.block:
        raise invalid_gguf(
            f"a row of {entry.shape[0]} of {entry.name!r} is not whole {found.name} blocks"
        )
    return tensor_bytes(found.name, entry.shape)
