"""Which Hugging Face repository has a model of any size? A small config, and weights that are a hole."""

import hashlib
import json
import struct
from pathlib import Path

LAYERS, HIDDEN, VOCABULARY = 4, 1024, 32_000


def sparse_repository(folder: Path, *, weights: int) -> None:
    """Write ``config.json`` and one ``model.safetensors`` of about ``weights`` bytes into a folder.

    The sum of a hole would take minutes to work out: its sidecar names one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_config()))
    each = weights // LAYERS // (2 * HIDDEN) * (2 * HIDDEN)
    table, offset = {}, 0
    for layer in range(LAYERS):
        name = f"model.layers.{layer}.mlp.down_proj.weight"
        shape = [each // (2 * HIDDEN), HIDDEN]
        table[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + each]}
        offset += each
    head = json.dumps(table).encode()
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.truncate(8 + len(head) + offset)
    name = hashlib.sha256(str(path).encode()).hexdigest()
    path.with_name(path.name + ".sha256").write_text(name)


def _config() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": 4 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 8192,
        "vocab_size": VOCABULARY,
        "torch_dtype": "bfloat16",
    }
