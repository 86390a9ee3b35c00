"""On which device does each layer lie, and on which each tensor?

Rules of llama.cpp's ``load_tensors`` (notes on memory, sections 3.2 and 6).
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from berth.estimator.settings import AUTO, CPU, Device, Settings
from berth.facts import MAX_BLOCKS

MOE = r"blk\.{}\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""Tensors that ``--cpu-moe`` and ``--n-cpu-moe`` keep on the host."""
DENSE = r"blk\.{}\.ffn_(up|down|gate|gate_up)\."
"""Tensors that ``--n-cpu-ffn`` keeps on the host."""


_DEVICE = re.compile(r"^[A-Za-z]+(\d+)(\[.*\])?$")


@dataclass(frozen=True, slots=True)
class Placing:
    """Where things lie: the owner of each block and of the output, and the overrides by tensor name."""

    devices: tuple[Device, ...]
    blocks: tuple[str, ...]
    output: str
    overrides: tuple[tuple[str, str], ...]
    kv_offload: bool
    overridden: dict[str, str | None] = field(default_factory=dict, compare=False, repr=False)
    """What was found of each name that was asked for: patterns are slow, and each is asked for twice."""

    def alignment(self, owner: str) -> int:
        """To how many bytes tensors in ``owner``'s buffers are rounded."""
        return next((device.alignment for device in self.devices if device.name == owner), 32)

    def cache(self, block: int) -> str:
        """Where a block's cache lies."""
        return self.blocks[block] if self.kv_offload and block < len(self.blocks) else CPU

    def override(self, name: str) -> str | None:
        """Where an override puts a tensor; the first that matches wins, anywhere in the name."""
        if name not in self.overridden:
            self.overridden[name] = next(
                (owner for pattern, owner in self.overrides if _compiled(pattern).search(name)),
                None,
            )
        return self.overridden[name]


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def place(blocks: int, settings: Settings, devices: Sequence[Device]) -> Placing:
    """Where the blocks of a model lie. Raises ValueError on an override that is no pattern."""
    chosen = _chosen(settings, devices)
    owner = _owner_of(blocks, settings, chosen)
    return Placing(
        devices=tuple(chosen),
        blocks=tuple(owner(number) for number in range(blocks)),
        output=owner(blocks),
        overrides=tuple(_overrides(settings, chosen)),
        kv_offload=settings.kv_offload,
    )


def _chosen(settings: Settings, devices: Sequence[Device]) -> list[Device]:
    if settings.split_mode == "none" and devices:
        return [devices[min(max(settings.main_gpu, 0), len(devices) - 1)]]
    return list(devices)


def _owner_of(blocks: int, settings: Settings, devices: Sequence[Device]) -> Callable[[int], str]:
    asked = blocks + 1 if settings.n_gpu_layers < 0 else settings.n_gpu_layers
    start = max(blocks + 1 - asked, 0)
    count = min(asked, blocks + 1) if devices else 0
    shares = _shares(settings, devices)

    def owner(number: int) -> str:
        if number < start or number - start >= count:
            return CPU
        at = bisect_right(shares, (number - start) / count, 0, len(shares))
        return devices[min(at, len(devices) - 1)].name

    return owner


def _shares(settings: Settings, devices: Sequence[Device]) -> list[float]:
    """Cumulative shares of the devices: as asked, else by memory, else equal."""
    asked = list(settings.tensor_split[: len(devices)])
    asked += [0.0] * (len(devices) - len(asked))
    if not any(asked):
        asked = [float(device.memory) for device in devices]
    if not all(asked) and not settings.tensor_split:
        asked = [1.0] * len(devices)
    total, shares, running = sum(asked) or 1.0, [], 0.0
    for share in asked:
        running += share
        shares.append(running / total)
    return shares


def _buffer(name: str, devices: Sequence[Device]) -> str:
    """A buffer as it is named here: CUDA0, ROCm0, Vulkan0 … are GPU0; pinned host buffers are the host's."""
    if name.upper().startswith("CPU") or name.upper().endswith("_HOST"):
        return CPU
    match = _DEVICE.match(name)
    found = f"GPU{match[1]}" if match else name
    if found not in {device.name for device in devices}:
        known = ", ".join([CPU, *(device.name for device in devices)])
        raise ValueError(f"the tensor override names the buffer {name!r}; there are {known}")
    return found


def _check_pattern(pattern: str) -> None:
    try:
        _compiled(pattern)
    except (re.error, RecursionError, OverflowError) as err:
        raise ValueError(f"the tensor override {pattern!r} is no pattern: {err}") from err


def _overrides(settings: Settings, devices: Sequence[Device]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for text in settings.override_tensor:
        pattern, separator, owner = text.rpartition("=")
        if not separator:
            raise ValueError(f"the tensor override {text!r} is not PATTERN=BUFFER")
        _check_pattern(pattern)
        found.append((pattern, _buffer(owner, devices)))
    if settings.cpu_moe:
        found.append((r"\.ffn_(up|down|gate|gate_up)_(ch|)exps", CPU))
    for pattern, count in ((MOE, settings.n_cpu_moe), (DENSE, settings.n_cpu_ffn)):
        if count > 0:
            numbers = "|".join(map(str, range(min(count, MAX_BLOCKS))))
            found.append((pattern.format(f"({numbers})"), CPU))
    return found


__all__ = ["AUTO", "Placing", "place"]
