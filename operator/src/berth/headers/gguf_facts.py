"""What do the files of one GGUF model say together?"""

from collections.abc import Sequence

from berth.facts import MAX_BLOCKS, Facts, TensorGroup, Value, group_tensors
from berth.facts.ggml import QUANTISED
from berth.headers.errors import HeaderError, HeaderReason, invalid_gguf
from berth.headers.gguf import GgufHeader, parse_gguf
from berth.headers.keep import bounded, can_keep
from berth.headers.window import Read

RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
"""Architectures without attention: they need no head count."""

MAX_WARNINGS = 8


def read_gguf(read: Read, size: int) -> Facts:
    """Facts of a model in one file. Raises HeaderError (InvalidGGUF)."""
    return gguf_facts([parse_gguf(read, size)])


def gguf_facts(headers: Sequence[GgufHeader]) -> Facts:
    """Facts of a model from the headers of all its files, first shard first.

    Only the first shard has the architecture's keys; tensors are the sum over the shards.
    Raises HeaderError where the shards do not belong together.
    """
    first = headers[0]
    _check_split(headers)
    architecture = _word(first, "general.architecture")
    tensors = [tensor for header in headers for tensor in header.tensors]
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise invalid_gguf("two of the files hold the same tensor")
    hparams = _hparams(first, architecture)
    warnings = [warning for header in headers for warning in header.warnings]
    groups = group_tensors(tensors)
    blocks = hparams.get("block_count", 0)
    if isinstance(blocks, int) and blocks > MAX_BLOCKS:
        raise invalid_gguf(f"{blocks} blocks are more than any model has")
    facts = Facts(
        format="gguf",
        architecture=architecture,
        name=_word(first, "general.name"),
        kind=_kind(first, architecture),
        vocabulary=_vocabulary(first, hparams),
        tokenizer=_word(first, "tokenizer.ggml.model"),
        chat_template="tokenizer.chat_template" in first.values
        or "tokenizer.chat_template" in first.texts,
        split_count=len(headers),
        file_bytes=tuple(header.size for header in headers),
        header_bytes=sum(header.header_bytes for header in headers),
        big_endian=first.big_endian,
        hparams=hparams,
        tensors=groups,
        missing=_missing(first, architecture, hparams),
        warnings=tuple(warnings[:MAX_WARNINGS]),
        quantisation=_quantisation(groups),
    )
    return bounded(facts)


def split_count(header: GgufHeader) -> int:
    """How many files the set has, by the file's own word; 1 where it says nothing."""
    count = header.values.get("split.count", 1)
    return count if isinstance(count, int) and count > 0 else 1


def _check_split(headers: Sequence[GgufHeader]) -> None:
    for number, header in enumerate(headers):
        count = split_count(header)
        if count != len(headers) and (count > 1 or len(headers) > 1):
            raise HeaderError(
                HeaderReason.MISSING_SHARD,
                f"file {number + 1} of {len(headers)} belongs to a set of {count} files",
            )
        if len(headers) > 1 and header.values.get("split.no") != number:
            raise invalid_gguf(
                f"file {number + 1} says it is number {header.values.get('split.no')} of its set"
            )
    total = headers[0].values.get("split.tensors.count")
    found = sum(len(header.tensors) for header in headers)
    if len(headers) > 1 and isinstance(total, int) and total != found:
        raise HeaderError(HeaderReason.MISSING_SHARD, f"the set holds {found} tensors of {total}")


def _word(header: GgufHeader, key: str) -> str:
    value = header.values.get(key)
    return value if isinstance(value, str) else ""


def _kind(header: GgufHeader, architecture: str) -> str:
    said = _word(header, "general.type")
    if said in {"mmproj", "adapter"}:
        return said
    return "mmproj" if architecture == "clip" else "model"


def _hparams(header: GgufHeader, architecture: str) -> dict[str, Value]:
    """The architecture's keys without prefix, in the file's order; for adapters and projectors theirs too."""
    prefix = f"{architecture}." if architecture else "\0"
    values = {
        key[len(prefix) :]: value for key, value in header.values.items() if key.startswith(prefix)
    }
    rest = {
        key: value for key, value in header.values.items() if key.startswith(("adapter.", "split."))
    }
    return {key: value for key, value in {**values, **rest}.items() if key and can_keep(value)}


def _vocabulary(header: GgufHeader, hparams: dict[str, Value]) -> int:
    """Tokens in the tokenizer, which the engine goes by; else the architecture's key."""
    said = header.lengths.get("tokenizer.ggml.tokens")
    if said is not None:
        return said
    value = hparams.get("vocab_size", 0)
    return value if isinstance(value, int) else 0


def _missing(header: GgufHeader, architecture: str, hparams: dict[str, Value]) -> tuple[str, ...]:
    """Keys without which memory cannot be known. kv heads default to heads, so they may be absent."""
    if not architecture:
        return ("general.architecture",)
    if _kind(header, architecture) != "model":
        return ()
    wanted = ["block_count", "embedding_length", "context_length"]
    if architecture not in RECURRENT:
        wanted.append("attention.head_count")
    return tuple(f"{architecture}.{key}" for key in wanted if key not in hparams)


def _quantisation(groups: Sequence[TensorGroup]) -> str:
    """The type that holds most bytes of the matrices; full-precision only where nothing is quantised."""
    sums: dict[str, int] = {}
    for group in groups:
        sums[group.kind] = sums.get(group.kind, 0) + group.total
    quantised = {kind: total for kind, total in sums.items() if kind in QUANTISED}
    best = quantised or sums
    return max(best, key=lambda kind: best[kind]) if best else ""
