"""How many bytes do keys, values and recurrent states take, and where?

Rules of llama.cpp's ``llama_kv_cache`` and ``llama_memory_recurrent`` (notes on memory, 3.3 and 3.4); they
are exact, not an approximation.
"""

from collections.abc import Callable
from dataclasses import dataclass

from berth.estimator.effective import Effective
from berth.estimator.settings import Settings, round_up
from berth.estimator.shape import Layer, Shape
from berth.facts.ggml import BY_NAME, QUANTISED, row_bytes

CACHE_KINDS = frozenset({"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "IQ4_NL", "Q5_0", "Q5_1"})
"""Types that keys and values may have."""
CUDA_ROW = 512
"""CUDA rounds the row of a quantised tensor up to so many elements, once per tensor."""


@dataclass(frozen=True, slots=True)
class CacheBytes:
    """Bytes of one layer's cache: keys and values, and the recurrent state."""

    kv: int
    state: int


def padded(nbytes: int, kind: str, row: int, alignment: int) -> int:
    """A tensor's bytes in a buffer whose tensors are rounded to ``alignment`` (128 stands for CUDA)."""
    if alignment == 128 and kind in QUANTISED and row % CUDA_ROW:
        nbytes += row_bytes(kind, CUDA_ROW - row % CUDA_ROW)
    return round_up(nbytes, alignment)


def layer_cache(
    shape: Shape,
    layer: Layer,
    settings: Settings,
    sizes: Effective,
    alignment: int,
    draft_slots: int = 0,
) -> CacheBytes:
    """Bytes of one layer's cache on a device with ``alignment``."""
    kv = _kv(shape, layer, settings, sizes, alignment) if layer.keeps else 0
    state = 0
    if layer.recurrent:
        rows = sizes.slots * (1 + draft_slots)
        state = sum(
            round_up(4 * width * rows, alignment) for width in (shape.state_r, shape.state_s)
        )
    return CacheBytes(kv, state)


def _kv(shape: Shape, layer: Layer, settings: Settings, sizes: Effective, alignment: int) -> int:
    cells = sizes.window_cells if layer.window else sizes.cells
    value = layer.value * layer.kv_heads
    if sizes.turned:
        # Without flash attention V lies transposed and every layer gets the widest row of any.
        value = max(value, shape.widest_value)
    total = _tensor(
        settings.cache_type_k, layer.key * layer.kv_heads, cells * sizes.streams, alignment
    )
    return (
        total
        if shape.mla
        else total + _tensor(settings.cache_type_v, value, cells * sizes.streams, alignment)
    )


def _tensor(kind: str, row: int, rows: int, alignment: int) -> int:
    if row == 0:
        return 0
    kind = cache_kind(kind)
    return padded(row_bytes(kind, row) * rows, kind, row, alignment)


def cache_kind(kind: str) -> str:
    """A cache type's name as ggml writes it. Raises KeyError where there is no such type."""
    return BY_NAME[kind.upper()].name


def per_device(
    shape: Shape,
    settings: Settings,
    sizes: Effective,
    owner_of: Callable[[Layer], str],
    alignment_of: Callable[[str], int],
    draft_slots: int = 0,
) -> dict[str, CacheBytes]:
    """Bytes by the buffer that ``owner_of`` names for each layer."""
    counts: dict[tuple[str, int], tuple[Layer, int]] = {}
    for layer in shape.layers:
        key = (owner_of(layer), layer.alike)
        counts[key] = (layer, counts[key][1] + 1 if key in counts else 1)
    sums: dict[str, CacheBytes] = {}
    for (owner, _), (layer, count) in counts.items():
        one = layer_cache(shape, layer, settings, sizes, alignment_of(owner), draft_slots)
        if one.kv or one.state:
            held = sums.get(owner, CacheBytes(0, 0))
            sums[owner] = CacheBytes(held.kv + count * one.kv, held.state + count * one.state)
    return sums
