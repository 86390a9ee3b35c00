"""Which file has these facts? Its keys and shapes are theirs; all weights are zero, and most of it is a hole."""

import os
import struct
from pathlib import Path

from berth.facts import Facts
from berth.facts.ggml import BY_ID
from headers.written import text, value_bytes

NUMBERS = {kind.name: number for number, kind in BY_ID.items()}


def vocabulary(count: int) -> list[tuple[str, bytes]]:
    """The keys of a small sentencepiece vocabulary."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "<|endoftext|>"]
    kinds = [2, 3, 3, *[6] * 256, 3]
    tokens += [f"\u2581t{number}" for number in range(count - len(tokens))]
    kinds += [1] * (len(tokens) - len(kinds))
    return [
        ("tokenizer.ggml.model", value_bytes("llama")),
        ("tokenizer.ggml.tokens", value_bytes(tokens)),
        ("tokenizer.ggml.scores", value_bytes([-float(number) for number in range(len(tokens))])),
        ("tokenizer.ggml.token_type", value_bytes(kinds)),
        ("tokenizer.ggml.bos_token_id", value_bytes(1)),
        ("tokenizer.ggml.eos_token_id", value_bytes(2)),
    ]


def write_model(facts: Facts, path: Path) -> None:
    """A GGUF file with the keys and tensors of ``facts``, its data a hole."""
    pairs = [("general.architecture", value_bytes(facts.architecture))]
    for key, value in facts.hparams.items():
        if not key.startswith("split."):
            pairs.append(
                (
                    f"{facts.architecture}.{key}",
                    value_bytes(list(value) if isinstance(value, tuple) else value),
                )
            )
    pairs += vocabulary(facts.vocabulary)
    table, offset = b"", 0
    for group in facts.tensors:
        for block in list(group.block_numbers()) or [0]:
            shape = group.shape
            table += text(group.named(block)) + struct.pack(
                f"<I{len(shape)}QIQ", len(shape), *shape, NUMBERS[group.kind], offset
            )
            offset += -(-group.nbytes // 32) * 32
    count = sum(group.count for group in facts.tensors)
    head = (
        b"GGUF"
        + struct.pack("<IQQ", 3, count, len(pairs))
        + b"".join(text(key) + raw for key, raw in pairs)
        + table
    )
    path.write_bytes(head)
    os.truncate(path, -(-len(head) // 32) * 32 + offset)
