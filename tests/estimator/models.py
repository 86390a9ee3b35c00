"""The measured models and cases, and how a case's settings are ours."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from berth.estimator import Device, Settings
from berth.facts import Facts

DATA = Path(__file__).parent.parent / "data" / "memory"


@cache
def models() -> dict[str, Facts]:
    """Facts of each measured model, as its header gave them."""
    rows = json.loads((DATA / "models.json").read_text())
    return {name: Facts.from_json(row) for name, row in rows.items()}


@cache
def cases() -> list[dict[str, Any]]:
    """The measured cases: llama.cpp build 11434, buffers by owner in bytes."""
    return json.loads((DATA / "cases.json").read_text())  # type: ignore[no-any-return]


def settings_of(row: dict[str, Any]) -> Settings:
    """A case's settings."""
    same = (
        "parallel", "kv_unified", "batch", "ubatch", "cache_type_k", "cache_type_v", "flash_attn", "swa_full",
        "embeddings", "n_gpu_layers", "kv_offload", "op_offload", "repack",
    )  # fmt: skip
    return Settings(
        context=row["n_ctx"],
        tensor_split=tuple(row.get("tensor_split", ())),
        n_cpu_moe=row.get("n_cpu_moe", 0),
        cpu_moe=row.get("cpu_moe", False),
        override_tensor=(row["override_tensor"],) if "override_tensor" in row else (),
        **{name: row[name] for name in same},
    )


def devices_of(case: dict[str, Any]) -> list[Device]:
    """A case's devices."""
    return [Device(name, rules="cuda" if case["cuda_rules"] else "rpc") for name in case["devices"]]


def facts(architecture: str, *, vocabulary: int = 1000, **hparams: Any) -> Facts:
    """A header with these keys (``__`` for a dot) and no tensors."""
    keys = {key.replace("__", "."): value for key, value in hparams.items()}
    return Facts("gguf", architecture, vocabulary=vocabulary, hparams=keys)
