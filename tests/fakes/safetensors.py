"""What would a small transformer in Hugging Face's layout be? Its header and configuration are real, its weights a hole."""

import json
import struct
from pathlib import Path

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}


def sparse_transformer(folder: Path) -> int:
    """A llama of 8 layers in ``folder``; returns the bytes of its weights."""
    shapes = {"model.embed_tokens.weight": (32000, 1024), "lm_head.weight": (32000, 1024)}
    for layer in range(8):
        for name, shape in (
            ("self_attn.q_proj", (1024, 1024)),
            ("self_attn.k_proj", (256, 1024)),
            ("self_attn.v_proj", (256, 1024)),
            ("self_attn.o_proj", (1024, 1024)),
            ("mlp.gate_proj", (2816, 1024)),
            ("mlp.up_proj", (2816, 1024)),
            ("mlp.down_proj", (1024, 2816)),
        ):
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    table, offset = {}, 0
    for name, (rows, columns) in shapes.items():
        end = offset + rows * columns * 2
        table[name] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [offset, end]}
        offset = end
    head = json.dumps(table).encode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.truncate(8 + len(head) + offset)
    return offset
