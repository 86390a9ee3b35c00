"""When may a model that failed be tried again, where not, and with how much more memory?"""

from collections.abc import Iterable
from dataclasses import replace

from berth.planner.state import HOST, Claim, Need, Restarts
from berth.reasons import Reason
from berth.units import Bytes, MiB

FIRST_BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 60.0
EXCLUDED_S = 60.0
FORGOTTEN_AFTER_S = 600.0
"""A load that failed this long ago says nothing about the next one."""
FAILED_AFTER = 5
"""From this many failures in a row on, clients are told at once instead of waiting."""

TERMINAL = frozenset(
    {
        Reason.BAD_FLAGS,
        Reason.WRONG_DEVICE,
        Reason.MISSING_FILE,
        Reason.UNSUPPORTED,
        Reason.INVALID_HEADER,
        Reason.CONTEXT_TOO_LONG,
        Reason.MISSING_SHARD,
        Reason.HASH_MISMATCH,
        Reason.SOURCE_NOT_FOUND,
        Reason.SOURCE_FORBIDDEN,
        Reason.SOURCE_UNAUTHORIZED,
        Reason.UNTRUSTED_PATH,
    }
)
"""Trying again cannot help: the user must change something."""

OF_THE_PLACE = frozenset(
    {
        Reason.NO_MEMORY,
        Reason.UNSCHEDULABLE,
        Reason.ADMISSION_ERROR,
        Reason.EVICTED,
        Reason.DISK_FULL,
        Reason.MEMORY,
        Reason.HOST_MEMORY,
        Reason.NO_AGENT,
        Reason.LOAD_IN_PROGRESS,
        Reason.SETTLING,
    }
)
"""The place was at fault, not the model: it is left out for a while and nothing is counted."""

NOT_A_FAILURE = frozenset(
    {
        Reason.NODE_LOST,
        Reason.NODE_DRAINED,
        Reason.NODE_NOT_READY,
        Reason.EPOCH,
        Reason.HELD,
        Reason.BUSY,
        Reason.IDLE,
        Reason.REPLACED,
        Reason.SCALED_DOWN,
        Reason.UNLOADED,
        Reason.SUSPENDED,
        Reason.DELETED,
        Reason.MAKE_ROOM,
    }
)


def next_restart(
    restarts: Restarts, *, now: float, reason: Reason, node: str = "", message: str = ""
) -> Restarts:
    """The restart record after one more load or runner ended with ``reason`` on ``node``.

    1. A lost, drained or held node, and an end that was wished for, is no failure: nothing changes.
    2. A fault of the place excludes the node for 60 s and counts nothing.
    3. A terminal reason stays until a new generation or a load by hand.
    4. Anything else counts: the next try is after 1, 2, 4 … 60 s. A record older than ten minutes
       is forgotten first.
    5. An OOM kill also excludes nothing: the larger need decides whether the node still fits.
    """
    kept = tuple((name, until) for name, until in restarts.excluded if until > now)
    if reason in NOT_A_FAILURE:
        return replace(restarts, excluded=kept)
    if reason in OF_THE_PLACE:
        away = ((node, now + EXCLUDED_S),) if node else ()
        others = tuple((name, until) for name, until in kept if name != node)
        return replace(restarts, excluded=others + away, reason=reason, message=message)
    stale = restarts.last_failed is not None and now - restarts.last_failed > FORGOTTEN_AFTER_S
    count = 1 if stale else restarts.count + 1
    return Restarts(
        count=count,
        last_failed=now,
        next_retry=now + backoff_s(count),
        reason=reason,
        message=message,
        terminal=reason in TERMINAL,
        excluded=kept,
    )


def backoff_s(count: int) -> float:
    """Seconds to wait after the ``count``-th failure in a row: 1, 2, 4 … 60."""
    return float(min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (min(count, 30) - 1)))


WILDEST = 2
"""A measurement beyond this many times the estimate is cut there: one freak must not lock a model out."""


ENOUGH_RUNS = 3
"""From so many runs on the one that took most is left out: it may have been a freak."""


def settled(peaks: Iterable[int]) -> int:
    """What the last runs say together: the largest of one or two, the second largest of more.

    So a freak is forgotten: at once where two others say otherwise, and with the runs that are no
    longer kept.
    """
    known = sorted(peaks, reverse=True)
    if not known:
        return 0
    return known[1] if len(known) >= ENOUGH_RUNS else known[0]


def larger_need(need: Need, seen: Claim | None) -> Need:
    """The larger of estimate and measurement, by place; ``seen`` is by UUID in the order of ``gpus``.

    A measurement beyond twice the estimate (and 1 GiB more) is cut there.
    """
    if seen is None:
        return need
    taken = [size for _, size in seen.devices]
    gpus = tuple(
        _tamed(size, taken[index] if index < len(taken) else Bytes(0))
        for index, size in enumerate(need.gpus)
    )
    return replace(need, host=_tamed(need.host, seen.on(HOST)), gpus=gpus)


def after_oom(need: Need, kills: int) -> Need:
    """The need after ``kills`` kills for want of host memory: a quarter, at least 512 MiB, for each."""
    if kills <= 0:
        return need
    step = max(need.host // 4, 512 * MiB)
    return replace(need, host=Bytes(need.host + step * min(kills, 4)))


def _tamed(estimate: Bytes, seen: Bytes) -> Bytes:
    limit = max(estimate * WILDEST, estimate + (1 << 30))
    return Bytes(max(estimate, min(seen, limit)))
