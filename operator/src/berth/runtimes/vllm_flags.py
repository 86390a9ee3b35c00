"""Which flags of ``vllm serve`` move a byte? (vLLM 0.33)"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from berth.estimator.vllm import VllmSettings

_FP8_BYTES, _HALF_BYTES = 1, 2


def _kv_bytes(text: str) -> int:
    return 0 if text == "auto" else _FP8_BYTES if "fp8" in text else _HALF_BYTES


def _length(text: str) -> int:
    """A length such as 32768, 32k (thousands) or 32K (1024)."""
    factor = {"k": 1000, "K": 1024, "m": 10**6, "M": 1 << 20}.get(text[-1:], 1)
    return int(text[:-1]) * factor if factor > 1 else int(text)


_FLAGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "--max-model-len": ("context", _length),
    "--tensor-parallel-size": ("tensor_parallel", int),
    "-tp": ("tensor_parallel", int),
    "--max-num-batched-tokens": ("batched_tokens", _length),
    "--max-num-seqs": ("sequences", int),
    "--kv-cache-dtype": ("kv_bytes", _kv_bytes),
    "--block-size": ("block", int),
}


def parse(words: Sequence[str], base: VllmSettings | None = None) -> VllmSettings:
    """The settings of a pasted ``vllm serve`` command line. Raises ValueError naming the flag."""
    found: dict[str, Any] = {}
    rest = list(words)
    while rest:
        name, separator, value = rest.pop(0).partition("=")
        if name == "--enforce-eager":
            found["graphs"] = False
        if name not in _FLAGS:
            continue
        if not separator:
            if not rest:
                raise ValueError(f"{name} needs a value")
            value = rest.pop(0)
        field, read = _FLAGS[name]
        try:
            found[field] = read(value)
        except ValueError as err:
            raise ValueError(f"{name} {value}: {err}") from err
    return replace(base or VllmSettings(), **found)
