"""What does an estimate say?"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from berth.units import Bytes, show_bytes


@dataclass(frozen=True, slots=True)
class Buffers:
    """One owner's buffers in bytes, as the engine names them. ``context``: KV cache and recurrent state."""

    model: int = 0
    context: int = 0
    compute: int = 0
    output: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.model + self.context + self.compute + self.output

    def __add__(self, other: "Buffers") -> "Buffers":
        return Buffers(
            self.model + other.model,
            self.context + other.context,
            self.compute + other.compute,
            self.output + other.output,
        )


@dataclass(frozen=True, slots=True)
class Kinds:
    """The same bytes by what they are for."""

    weights: int = 0
    kv_cache: int = 0
    state: int = 0
    compute: int = 0
    output: int = 0
    projector: int = 0
    draft: int = 0
    adapters: int = 0
    outside: int = 0
    """Beside the buffers: heap and vocabulary, saved prompts and checkpoints, the driver's context."""


@dataclass(frozen=True, slots=True)
class HostNeeds:
    """Bytes of host memory: ``anonymous`` counts whatever happens; ``file`` pages are the mapped weights.

    ``file_read_once`` pages are read while loading and are not needed again.
    """

    anonymous: int = 0
    file: int = 0
    file_read_once: int = 0

    @property
    def total(self) -> int:
        """What the host must have for it."""
        return self.anonymous + self.file


@dataclass(frozen=True, slots=True)
class Estimate:
    """A model's needs. ``sure`` is False where they are an upper bound; ``notes`` say why."""

    buffers: Mapping[str, Buffers]
    kinds: Kinds
    host: HostNeeds
    devices: tuple[tuple[str, Bytes], ...]
    tokens: int
    per_request: int
    parallel: int
    sure: bool = True
    notes: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    """Why the engine would refuse these settings; empty when it takes them."""

    @property
    def total(self) -> Bytes:
        """Host and devices together."""
        return Bytes(self.host.total + sum(nbytes for _, nbytes in self.devices))

    @property
    def sentence(self) -> str:
        """What is needed, for people."""
        parts = [
            ("weights", self.kinds.weights),
            ("KV cache", self.kinds.kv_cache),
            ("recurrent state", self.kinds.state),
            ("buffers", self.kinds.compute + self.kinds.output),
            ("projector", self.kinds.projector),
            ("draft model", self.kinds.draft),
            ("adapters", self.kinds.adapters),
            ("process and driver", self.kinds.outside),
        ]
        shown = ", ".join(f"{name} {show_bytes(count)}" for name, count in parts if count)
        atmost = "" if self.sure else "at most "
        return f"{atmost}{show_bytes(self.total)} for {self.tokens} tokens of context ({shown})"

    def to_json(self) -> dict[str, Any]:
        """Plain numbers: what ``berth fit --json`` prints."""
        return {
            "buffers": {
                owner: {
                    "model": one.model,
                    "context": one.context,
                    "compute": one.compute,
                    "output": one.output,
                }
                for owner, one in self.buffers.items()
            },
            "needs": {"host": self.host.total, "devices": [nbytes for _, nbytes in self.devices]},
            "total": self.total,
            "sure": self.sure,
            "notes": [
                *self.notes,
                *(f"refused by the engine: {refusal}" for refusal in self.refusals),
            ],
        }
