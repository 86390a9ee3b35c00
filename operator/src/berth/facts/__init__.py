"""What did a model file's header say?

`Facts` is what `headers` reads and what `estimator` prices. It is stored in a Model's status, so its JSON
is compact: equal tensors are grouped and per-layer arrays are run-length coded (32 KiB at most).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from berth.facts.tensors import Tensor, TensorGroup, group_tensors

__all__ = [
    "MAX_BLOCKS",
    "MAX_JSON",
    "Facts",
    "Scalar",
    "Tensor",
    "TensorGroup",
    "Value",
    "group_tensors",
]

Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...]
"""A header's value: one number or word, or one number per layer."""

MAX_BLOCKS = 4096
"""No model has more blocks; a header that says so is not believed."""

MAX_JSON = 32 << 10
"""The most bytes that the JSON of one model's facts may take in a Model's status."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What one model's header (all its files together) said.

    ``hparams`` are the architecture's own keys without their prefix (``attention.head_count_kv``); a
    safetensors model's ``config.json`` is put under the same names. ``missing`` names the keys without
    which no sure estimate can be made.
    """

    format: str
    architecture: str
    name: str = ""
    kind: str = "model"
    """``model``, ``mmproj`` (a projector) or ``adapter`` (a LoRA)."""
    quantisation: str = ""
    vocabulary: int = 0
    tokenizer: str = ""
    chat_template: bool = False
    split_count: int = 1
    file_bytes: tuple[int, ...] = ()
    header_bytes: int = 0
    big_endian: bool = False
    hparams: Mapping[str, Value] = field(default_factory=dict)
    tensors: tuple[TensorGroup, ...] = ()
    missing: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """Elements of all tensors."""
        return sum(group.elements * group.count for group in self.tensors)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors, without padding."""
        return sum(group.total for group in self.tensors)

    @property
    def layers(self) -> int | None:
        """The number of blocks."""
        return self.integer("block_count")

    @property
    def context_length(self) -> int | None:
        """The context that the model was trained for, in tokens."""
        return self.integer("context_length")

    @property
    def tied_embeddings(self) -> bool:
        """Whether the output matrix is the token embedding's."""
        return not any(group.name in {"output.weight", "lm_head.weight"} for group in self.tensors)

    def integer(self, key: str) -> int | None:
        """A key's number; of a per-layer array the largest; None where the key is missing."""
        value = self.hparams.get(key)
        if isinstance(value, tuple):
            value = max(
                (number for number in value if isinstance(number, int | float)), default=None
            )
        return int(value) if isinstance(value, int | float) else None

    def per_layer(self, key: str) -> tuple[int, ...] | None:
        """A key's number for each block: an array as it stands, a scalar repeated; None where missing."""
        value = self.hparams.get(key)
        count = min(max(self.layers or 0, 0), MAX_BLOCKS)
        if isinstance(value, tuple):
            numbers = tuple(int(number) for number in value if isinstance(number, int | float))
            return (numbers + numbers[-1:] * count)[:count] if numbers else None
        return (int(value),) * count if isinstance(value, int | float) else None

    def to_json(self) -> dict[str, Any]:
        """A compact JSON object, empty and default fields left out."""
        row: dict[str, Any] = {"format": self.format, "architecture": self.architecture}
        for name in _PLAIN:
            value = getattr(self, name)
            if value != getattr(_EMPTY, name):
                row[name] = list(value) if isinstance(value, tuple) else value
        row["hparams"] = {key: _pack(value) for key, value in self.hparams.items()}
        row["tensors"] = [group.to_json() for group in self.tensors]
        return row

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> "Facts":
        """The inverse of :meth:`to_json`. Raises KeyError or TypeError on something else."""
        plain = {name: _frozen(row[name]) for name in _PLAIN if name in row}
        return replace(
            _EMPTY,
            format=row["format"],
            architecture=row["architecture"],
            hparams={key: _unpack(value) for key, value in row["hparams"].items()},
            tensors=tuple(TensorGroup.from_json(group) for group in row["tensors"]),
            **plain,
        )


_PLAIN = (
    "name",
    "kind",
    "quantisation",
    "vocabulary",
    "tokenizer",
    "chat_template",
    "split_count",
    "file_bytes",
    "header_bytes",
    "big_endian",
    "missing",
    "warnings",
)
_EMPTY = Facts(format="", architecture="")


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _pack(value: Value) -> Any:
    """A per-layer array as ``[[value, count], …]``; a scalar as it stands."""
    if not isinstance(value, tuple):
        return value
    return [[member, len(list(run))] for (_, member), run in groupby(value, lambda m: (type(m), m))]


def _unpack(value: Any) -> Value:
    if not isinstance(value, list):
        return value  # type: ignore[no-any-return]
    return tuple(member for member, count in value for _ in range(count))
