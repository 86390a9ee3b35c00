"""Is a change of a figure worth a write? An idle, ready fleet writes nothing."""

from berth.units import MiB

FREE_STEP = 256 * MiB
FREE_SHARE = 0.02
PEAK_STEP = 64 * MiB
PEAK_SHARE = 0.01
FREE_EVERY_S = 10.0
"""Free memory is written at most this often."""
PROGRESS_EVERY_S = 5.0
"""Progress of a fetch and counters of requests are written at most this often."""


def has_moved(before: int | None, now: int | None) -> bool:
    """Free memory moved, either way, by max(256 MiB, 2 %); becoming known or unknown counts."""
    if before is None or now is None:
        return before is not now
    return abs(now - before) >= max(FREE_STEP, int(before * FREE_SHARE))


def has_shifted(before: int | None, now: int | None) -> bool:
    """What a runner holds moved, either way, by max(64 MiB, 1 %)."""
    if before is None or now is None:
        return before is not now
    return abs(now - before) >= max(PEAK_STEP, int(before * PEAK_SHARE))


def has_risen(before: int | None, now: int | None) -> bool:
    """A peak rose by max(64 MiB, 1 %), or was learnt."""
    if now is None:
        return False
    return before is None or now - before >= max(PEAK_STEP, int(before * PEAK_SHARE))
