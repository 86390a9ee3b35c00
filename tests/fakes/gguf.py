"""How is a GGUF made that looks as large as a test needs and takes no disk?

The header is whole (format: github.com/ggml-org/ggml, docs/gguf.md); the weights are a hole.
"""

import struct
from pathlib import Path

MAGIC = b"GGUF"
VERSION = 3
ALIGNMENT = 32
_STRING, _UINT32, _FLOAT32, _ARRAY = 8, 4, 6, 9
F32, F16 = 0, 1
_SIZE = {F32: 4, F16: 2}
EMBEDDING = 2048
LAYER = 100 << 20
"""About the bytes of one layer: many ordinary layers rather than few absurd ones, whose buffers would count."""
HEAD_DIM = 64
VOCABULARY = 256


def sparse_llama(
    path: Path, *, weights: int, layers: int = 0, kv_heads: int = 2, context: int = 8192
) -> int:
    """A llama of about ``weights`` bytes (a little more) at ``path``; returns the file's size."""
    layers = layers or min(200, max(1, weights // LAYER))
    ffn = max(32, weights // (layers * 3 * EMBEDDING * _SIZE[F16]) // 32 * 32)
    tensors = _tensors(layers, kv_heads, ffn)
    header = _header(_metadata(layers, kv_heads, ffn, context), tensors)
    data = sum(_padded(_bytes(dims, kind)) for _, dims, kind in tensors)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + data)
    return len(header) + data


Tensor = tuple[str, tuple[int, ...], int]


def _tensors(layers: int, kv_heads: int, ffn: int) -> list[Tensor]:
    kv = kv_heads * HEAD_DIM
    found: list[Tensor] = [("token_embd.weight", (EMBEDDING, VOCABULARY), F16)]
    for i in range(layers):
        matrices = {
            "attn_q": (EMBEDDING, EMBEDDING),
            "attn_k": (EMBEDDING, kv),
            "attn_v": (EMBEDDING, kv),
            "attn_output": (EMBEDDING, EMBEDDING),
            "ffn_gate": (EMBEDDING, ffn),
            "ffn_up": (EMBEDDING, ffn),
            "ffn_down": (ffn, EMBEDDING),
        }
        found += [(f"blk.{i}.{name}.weight", dims, F16) for name, dims in matrices.items()]
        found += [(f"blk.{i}.{n}.weight", (EMBEDDING,), F32) for n in ("attn_norm", "ffn_norm")]
    return [
        *found,
        ("output_norm.weight", (EMBEDDING,), F32),
        ("output.weight", (EMBEDDING, VOCABULARY), F16),
    ]


def _metadata(layers: int, kv_heads: int, ffn: int, context: int) -> list[bytes]:
    return [
        _string_pair("general.architecture", "llama"),
        _string_pair("general.name", "sparse"),
        _number_pair("llama.context_length", context),
        _number_pair("llama.embedding_length", EMBEDDING),
        _number_pair("llama.block_count", layers),
        _number_pair("llama.feed_forward_length", ffn),
        _number_pair("llama.attention.head_count", EMBEDDING // HEAD_DIM),
        _number_pair("llama.attention.head_count_kv", kv_heads),
        _number_pair("llama.rope.dimension_count", HEAD_DIM),
        _number_pair("llama.vocab_size", VOCABULARY),
        _string("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", _FLOAT32, 1e-5),
        _string_pair("tokenizer.ggml.model", "gpt2"),
        _string("tokenizer.ggml.tokens")
        + struct.pack("<IIQ", _ARRAY, _STRING, VOCABULARY)
        + b"".join(_string(f"<{n}>") for n in range(VOCABULARY)),
    ]


def _header(metadata: list[bytes], tensors: list[Tensor]) -> bytes:
    out = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(metadata)), *metadata]
    offset = 0
    for name, dims, kind in tensors:
        shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        out.append(_string(name) + shape + struct.pack("<IQ", kind, offset))
        offset += _padded(_bytes(dims, kind))
    whole = b"".join(out)
    return whole.ljust(_padded(len(whole)), b"\0")


def _bytes(dims: tuple[int, ...], kind: int) -> int:
    count = 1
    for dim in dims:
        count *= dim
    return count * _SIZE[kind]


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _string_pair(key: str, value: str) -> bytes:
    return _string(key) + struct.pack("<I", _STRING) + _string(value)


def _number_pair(key: str, value: int) -> bytes:
    return _string(key) + struct.pack("<II", _UINT32, value)
