"""What do a safetensors model's files say?

Format: https://github.com/huggingface/safetensors#format: eight bytes of length, then JSON. A safetensors
file has no architecture; that is in the ``config.json`` beside it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

from berth.facts import Facts, Tensor, group_tensors
from berth.headers.config import read_config
from berth.headers.errors import HeaderError, HeaderReason, invalid_header
from berth.headers.keep import bounded
from berth.headers.window import Read

MAX_JSON_HEADER = 32 << 20
"""Headers in the field have up to a few MB; the format's own limit is 100 MB."""
MAX_TENSORS = 262_144
STEP = 256 << 10

_LENGTH = Struct("<Q")
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "C64": 64,
}  # fmt: skip
_SHARD = re.compile(r"-(\d{5,6})-of-(\d{5,6})\.safetensors$")


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """One file's header."""

    size: int
    header_bytes: int
    tensors: tuple[Tensor, ...]


def parse_safetensors(read: Read, size: int) -> SafetensorsHeader:
    """The header of the file of ``size`` bytes behind ``read``. Raises HeaderError (InvalidHeader)."""
    first = read(0, min(STEP, size))
    if len(first) < 8:
        raise invalid_header("the file is shorter than a safetensors header")
    length = _LENGTH.unpack_from(first)[0]
    if length > size - 8 or length > MAX_JSON_HEADER:
        raise invalid_header(f"a header of {length} bytes cannot be in a file of {size}")
    raw = first[8 : 8 + length]
    if len(raw) < length:
        raw += read(8 + len(raw), length - len(raw))
    table = parse_json(raw, "the safetensors header")
    table.pop("__metadata__", None)
    if len(table) > MAX_TENSORS:
        raise invalid_header(f"{len(table)} tensors are more than any file has")
    room = size - 8 - length
    return SafetensorsHeader(
        size, 8 + length, tuple(_tensor(name, row, room) for name, row in table.items())
    )


def parse_json(raw: bytes, what: str) -> dict[str, Any]:
    """A JSON object. Raises HeaderError where it is none."""
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as err:
        raise invalid_header(f"{what} is not JSON: {str(err)[:100]}") from err
    if not isinstance(found, dict):
        raise invalid_header(f"{what} is not a JSON object")
    return found


def _tensor(name: str, row: Any, room: int) -> Tensor:
    try:
        kind, shape, (begin, end) = str(row["dtype"]), tuple(row["shape"]), row["data_offsets"]
    except (TypeError, KeyError, ValueError) as err:
        raise invalid_header(
            f"the tensor {name[:80]!r} has no dtype, shape and data_offsets"
        ) from err
    numbers = (*shape, begin, end)
    if (
        not all(type(number) is int and 0 <= number < 1 << 53 for number in numbers)
        or len(shape) > 8
    ):
        raise invalid_header(f"the tensor {name[:80]!r} has impossible numbers")
    if not begin <= end <= room:
        raise invalid_header(f"the tensor {name[:80]!r} ends at byte {end} of {room}")
    _check_bytes(name, kind, shape, end - begin)
    return Tensor(name[:200], kind[:20], shape, end - begin)


def _check_bytes(name: str, kind: str, shape: tuple[int, ...], nbytes: int) -> None:
    bits = _BITS.get(kind)
    for dimension in shape if bits else ():
        bits = (bits or 0) * dimension
    if bits is not None and -(-bits // 8) != nbytes:
        raise invalid_header(
            f"the tensor {name[:80]!r} has {nbytes} bytes where its shape needs {-(-bits // 8)}"
        )


def safetensors_facts(headers: Sequence[SafetensorsHeader], config: Mapping[str, Any]) -> Facts:
    """Facts of a model from all its files' headers and its ``config.json``. Raises HeaderError."""
    tensors = [tensor for header in headers for tensor in header.tensors]
    said = read_config(config)
    return bounded(
        Facts(
            format="safetensors",
            architecture=said.architecture,
            quantisation=said.quantisation or _dominant(tensors),
            vocabulary=said.vocabulary,
            chat_template=said.chat_template,
            split_count=len(headers),
            file_bytes=tuple(header.size for header in headers),
            header_bytes=sum(header.header_bytes for header in headers),
            hparams=said.hparams,
            tensors=group_tensors(tensors),
            missing=said.missing,
        )
    )


def shard_names(index: Mapping[str, Any]) -> list[str]:
    """The files that an index names, sorted. Raises HeaderError where it names none or a path."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise invalid_header("the index has no weight_map")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if "/" in name or not name.endswith(".safetensors"):
            raise invalid_header(f"the index names {name[:100]!r}, which is no file beside it")
    return names


def check_shards(names: Sequence[str], present: Sequence[str]) -> None:
    """Raises HeaderError (MissingShard) naming the first file that is not there."""
    for name in names:
        if name not in present:
            raise HeaderError(HeaderReason.MISSING_SHARD, f"the file {name} is missing")


def expected_shards(name: str) -> list[str]:
    """All names of the set that a file ``…-00001-of-0000N.safetensors`` belongs to; itself where it is alone."""
    match = _SHARD.search(name)
    if match is None:
        return [name]
    width, count = len(match[1]), int(match[2])
    head = name[: match.start()]
    return [
        f"{head}-{number:0{width}d}-of-{match[2]}.safetensors"
        for number in range(1, min(count, 2000) + 1)
    ]


def _dominant(tensors: Sequence[Tensor]) -> str:
    sums: dict[str, int] = {}
    for tensor in tensors:
        sums[tensor.kind] = sums.get(tensor.kind, 0) + tensor.nbytes
    return max(sums, key=lambda kind: sums[kind]) if sums else ""
