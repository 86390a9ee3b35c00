"""What does the process take beside the engine's buffers?

Measured on llama-server b11434 (notes on memory, sections 3.8 and 6): heap and vocabulary, saved prompts,
context checkpoints, and what a GPU's driver keeps for each process.
"""

from berth.estimator.effective import CELL_STEP, Effective
from berth.estimator.settings import Settings, round_up
from berth.estimator.shape import Shape
from berth.facts import Facts
from berth.units import MiB

HEAP = 10 * MiB
"""Threads' stacks, buffers of the HTTP server, the graph's own nodes."""
VOCABULARY_ENTRY = 190
"""Bytes of heap for one token: 100 to 190 were measured."""
LIBRARIES = 20 * MiB
"""File pages of the program and its libraries."""
DRIVER = 500 * MiB
"""What a CUDA context takes on each device: 120 to 550 MB by card and driver were reported."""
DRIVER_SHARE = 0.02
"""cuBLAS workspaces, pool pages and fragmentation, as a share of the device's buffers."""
SAVED_PROMPT = 128
"""Bytes that a saved prompt adds for one token beside its cache: the tokens themselves, and slack."""
NO_CAP = -1


def engine_bytes(facts: Facts) -> int:
    """Anonymous memory of the process outside the buffers."""
    return HEAP + VOCABULARY_ENTRY * facts.vocabulary


def driver_bytes(buffers: int, *, rules: str) -> int:
    """What the driver takes on a device beside ``buffers`` bytes."""
    return DRIVER + int(buffers * DRIVER_SHARE) if rules == "cuda" else 0


def prompt_cache(settings: Settings, cache_bytes: int, sizes: Effective) -> int:
    """Anonymous bytes that saved prompts may grow to: the cap; without one, the whole cache once more a slot."""
    if settings.cache_ram_mib != NO_CAP:
        return max(settings.cache_ram_mib, 0) * MiB
    return sizes.slots * (cache_bytes + SAVED_PROMPT * sizes.context)


def checkpoint_bytes(shape: Shape, settings: Settings, sizes: Effective, window: int) -> int:
    """Anonymous bytes that context checkpoints may grow to: of each slot so many states and windows.

    ``window`` is the cache of all sliding layers, all streams together; a checkpoint holds one slot's part.
    """
    state = sum(4 * (shape.state_r + shape.state_s) for layer in shape.layers if layer.recurrent)
    own = min(sizes.window_cells, round_up(shape.window + sizes.ubatch, CELL_STEP))
    cells = sizes.window_cells * sizes.streams
    part = 0 if settings.swa_full or not cells else window * own // cells
    return max(settings.ctx_checkpoints, 0) * sizes.slots * (state + part)
