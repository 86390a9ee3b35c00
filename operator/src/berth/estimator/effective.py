"""Which sizes does the engine make of what it was asked for?

Rules of llama.cpp's ``llama_context`` and llama-server (notes on memory, section 3.1).
"""

from dataclasses import dataclass

from berth.estimator import architectures as arch
from berth.estimator.settings import Settings, round_up
from berth.estimator.shape import Shape

CELL_STEP = 256
UNFUSED = "unfused"
"""``auto`` after it found that flash attention cannot be had: off, but the cache is laid out as with it."""


@dataclass(frozen=True, slots=True)
class Effective:
    """The sizes in force.

    ``cells`` is one stream's cache in tokens, ``context`` all streams', ``window_cells`` one stream's cache
    of a sliding layer, ``rows`` the tokens of one graph, ``outputs`` its rows of logits.
    """

    context: int
    cells: int
    streams: int
    window_cells: int
    batch: int
    ubatch: int
    rows: int
    outputs: int
    slots: int
    flash: bool
    turned: bool
    """Whether values lie transposed: only where flash attention was turned off before the cache was made."""

    @property
    def graph_outputs(self) -> int:
        """Rows of logits (or embeddings) that the largest graph gives."""
        return min(min(self.ubatch, self.context), self.outputs)


def effective(shape: Shape, settings: Settings) -> Effective:
    """What llama-server makes of ``settings`` for a model."""
    slots = settings.slots
    asked = _context(shape, settings)
    batch = min(settings.batch, asked) if shape.causal else settings.batch
    if settings.embeddings:
        batch = min(batch, settings.ubatch or batch)
    ubatch = min(batch, settings.ubatch or batch)
    context = round_up(asked, CELL_STEP)
    unified = settings.unified
    cells = context if unified else round_up(context // slots, CELL_STEP)
    streams = 1 if unified else slots
    rows = round_up(min(ubatch, cells * streams), slots)
    return Effective(
        context=cells * streams,
        cells=cells,
        streams=streams,
        window_cells=_window_cells(shape, settings, cells, ubatch),
        batch=batch,
        ubatch=ubatch,
        rows=rows,
        outputs=batch
        if settings.embeddings or shape.architecture in arch.ENCODER_DECODERS
        else min(batch, slots),
        slots=slots,
        flash=settings.flash_attn not in {"off", UNFUSED},
        turned=settings.flash_attn == "off",
    )


def _context(shape: Shape, settings: Settings) -> int:
    if settings.context > 0:
        return settings.context
    if settings.kv_unified_per_slot > 0 and settings.unified:
        return settings.kv_unified_per_slot * settings.slots
    return max(shape.trained, 1)


def _window_cells(shape: Shape, settings: Settings, cells: int, ubatch: int) -> int:
    if settings.swa_full:
        return cells
    width = shape.window * (settings.slots if settings.unified else 1) + ubatch
    return round_up(min(cells, width), CELL_STEP)
