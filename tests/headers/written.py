"""Small GGUF and safetensors files, written byte by byte so that any of their bytes can be wrong."""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

KINDS = {
    "u8": 0,
    "i8": 1,
    "u16": 2,
    "i16": 3,
    "u32": 4,
    "i32": 5,
    "f32": 6,
    "bool": 7,
    "u64": 10,
    "i64": 11,
    "f64": 12,
}
FORMS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def text(value: str | bytes, order: str = "<") -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack(order + "Q", len(raw)) + raw


def value_bytes(value: Any, order: str = "<", kind: str = "") -> bytes:
    """Type and content of one value; ``kind`` names a number's type (an array's members')."""
    if isinstance(value, str | bytes):
        return struct.pack(order + "I", 8) + text(value, order)
    if isinstance(value, list):
        return struct.pack(order + "I", 9) + array_bytes(value, order, kind)
    number = KINDS[
        kind
        or ("bool" if isinstance(value, bool) else "f32" if isinstance(value, float) else "u32")
    ]
    return struct.pack(order + "I" + FORMS[number], number, value)


def array_bytes(values: list[Any], order: str, kind: str = "") -> bytes:
    if values and isinstance(values[0], str | bytes):
        return struct.pack(order + "IQ", 8, len(values)) + b"".join(
            text(one, order) for one in values
        )
    if values and isinstance(values[0], list):
        return struct.pack(order + "IQ", 9, len(values)) + b"".join(
            array_bytes(one, order, kind) for one in values
        )
    first = values[0] if values else 0
    number = KINDS[
        kind
        or ("bool" if isinstance(first, bool) else "f32" if isinstance(first, float) else "i32")
    ]
    return struct.pack(order + "IQ", number, len(values)) + b"".join(
        struct.pack(order + FORMS[number], one) for one in values
    )


def tensor_bytes(
    name: str, shape: Sequence[int], kind: int, offset: int, order: str = "<"
) -> bytes:
    return text(name, order) + struct.pack(
        order + "I" + "Q" * len(shape) + "IQ", len(shape), *shape, kind, offset
    )


def gguf(
    keys: Mapping[str, Any] | Sequence[tuple[str, bytes]],
    tensors: Sequence[tuple[str, Sequence[int], int, int]] = (),
    *,
    order: str = "<",
    version: int = 3,
    alignment: int = 32,
    data: int | None = None,
) -> bytes:
    """A whole file. ``tensors``: name, shape, type number, bytes. ``data``: bytes behind the header, else enough."""
    pairs = (
        [(key, value_bytes(value, order)) for key, value in keys.items()]
        if isinstance(keys, Mapping)
        else list(keys)
    )
    head = b"GGUF" + struct.pack(order + "IQQ", version, len(tensors), len(pairs))
    head += b"".join(text(key, order) + raw for key, raw in pairs)
    offset = 0
    for name, shape, kind, nbytes in tensors:
        head += tensor_bytes(name, shape, kind, offset, order)
        offset += -(-nbytes // alignment) * alignment
    pad = -len(head) % alignment
    return head + b"\0" * (pad + (offset if data is None else data))


def llama(**more: Any) -> dict[str, Any]:
    """The keys of a small llama."""
    return {
        "general.architecture": "llama",
        "general.name": "small",
        "llama.block_count": 2,
        "llama.embedding_length": 64,
        "llama.context_length": 512,
        "llama.feed_forward_length": 128,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        **more,
    }


def weights() -> list[tuple[str, Sequence[int], int, int]]:
    """Some float32 tensors of that llama."""
    found: list[tuple[str, Sequence[int], int, int]] = [
        ("token_embd.weight", (64, 32), 0, 8192),
        ("output_norm.weight", (64,), 0, 256),
    ]
    for block in range(2):
        found += [
            (f"blk.{block}.attn_norm.weight", (64,), 0, 256),
            (f"blk.{block}.attn_q.weight", (64, 64), 0, 16384),
            (f"blk.{block}.attn_k.weight", (64, 32), 0, 8192),
            (f"blk.{block}.attn_v.weight", (64, 32), 0, 8192),
            (f"blk.{block}.attn_output.weight", (64, 64), 0, 16384),
            (f"blk.{block}.ffn_norm.weight", (64,), 0, 256),
            (f"blk.{block}.ffn_up.weight", (64, 128), 0, 32768),
            (f"blk.{block}.ffn_gate.weight", (64, 128), 0, 32768),
            (f"blk.{block}.ffn_down.weight", (128, 64), 0, 32768),
        ]
    return found


def reader(raw: bytes, log: list[tuple[int, int]] | None = None) -> Callable[[int, int], bytes]:
    def read(offset: int, length: int) -> bytes:
        if log is not None:
            log.append((offset, length))
        return raw[offset : offset + length]

    return read


def safetensors(
    tensors: Mapping[str, tuple[str, Sequence[int], int]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """A whole safetensors file; each tensor is dtype, shape and bytes."""
    table: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, (kind, shape, nbytes) in tensors.items():
        table[name] = {
            "dtype": kind,
            "shape": list(shape),
            "data_offsets": [offset, offset + nbytes],
        }
        offset += nbytes
    head = json.dumps(table).encode()
    return struct.pack("<Q", len(head)) + head + b"\0" * offset
