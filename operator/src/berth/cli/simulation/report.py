"""How is a simulation told: what was loaded and evicted, who waited how long, what was refused?"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from berth.cli.show import table_lines
from berth.cli.simulation.values import Happening, Tally
from berth.units import show_seconds

_HEADERS = (
    "model", "requests", "served", "refused", "gave up", "loads", "evicted", "unloaded",
    "wait p50", "p95", "max",
)  # fmt: skip


def percentile(waits: Sequence[float], share: float) -> float:
    """The smallest wait that is not exceeded by this share of all (nearest rank); 0 for none."""
    ordered = sorted(waits)
    rank = -(-len(ordered) * share // 1)
    return ordered[max(0, int(rank) - 1)] if ordered else 0.0


def report_lines(
    tallies: Mapping[str, Tally], happenings: Iterable[Happening], *, start: float, end: float
) -> list[str]:
    """A sentence, a row for each model that was asked for, and each refusal once."""
    whole = total(tallies.values())
    lines = [
        f"{_count(whole.requests, 'request')} over {show_seconds(end - start)}:"
        f" {whole.served} served, {whole.refused} refused, {whole.gave_up} gave up;"
        f" {_count(whole.loads, 'load')}, {_count(whole.evicted, 'eviction')}",
        "",
        *table_lines(_HEADERS, [_row(key, tallies[key]) for key in sorted(tallies)]),
    ]
    told = {(h.model, h.text): h for h in happenings if h.what == "refused"}
    refusals = [f"  {moment(h.at - start)}  {h.model}: {h.text}" for h in told.values()]
    return [*lines, "", "Refused", *refusals] if refusals else lines


def total(tallies: Iterable[Tally]) -> Tally:
    """All models together."""
    whole = Tally()
    for one in tallies:
        for name in ("requests", "served", "refused", "gave_up", "loads", "evicted", "unloaded"):
            setattr(whole, name, getattr(whole, name) + getattr(one, name))
        whole.waits.extend(one.waits)
    return whole


def _row(key: str, tally: Tally) -> tuple[str, ...]:
    counts = (
        tally.requests,
        tally.served,
        tally.refused,
        tally.gave_up,
        tally.loads,
        tally.evicted,
        tally.unloaded,
    )
    waits = (percentile(tally.waits, 0.5), percentile(tally.waits, 0.95), max(tally.waits or [0]))
    shown = (show_seconds(round(wait, 1)) if tally.waits else "" for wait in waits)
    return (key, *(str(count) for count in counts), *shown)


def timeline_lines(happenings: Iterable[Happening], *, start: float) -> list[str]:
    """Every load, unload and refusal with its moment."""
    rows = [(moment(h.at - start), h.what, h.model, h.text) for h in happenings]
    return table_lines(("at", "what", "model", "where and why"), rows)


def moment(seconds: float) -> str:
    """``h:mm:ss`` since the start."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def report_wire(
    tallies: Mapping[str, Tally], happenings: Iterable[Happening], *, start: float, end: float
) -> dict[str, Any]:
    """What ``--json`` says; seconds are numbers, moments are seconds since the start."""
    return {
        "seconds": round(end - start, 3),
        "total": _tally_wire(total(tallies.values())),
        "models": {key: _tally_wire(tallies[key]) for key in sorted(tallies)},
        "happenings": [
            {"at": round(h.at - start, 3), "what": h.what, "model": h.model, "text": h.text}
            for h in happenings
        ],
    }


def _tally_wire(tally: Tally) -> dict[str, Any]:
    return {
        "requests": tally.requests,
        "served": tally.served,
        "refused": tally.refused,
        "gaveUp": tally.gave_up,
        "loads": tally.loads,
        "evicted": tally.evicted,
        "unloaded": tally.unloaded,
        "wait": {
            "p50": round(percentile(tally.waits, 0.5), 3),
            "p95": round(percentile(tally.waits, 0.95), 3),
            "max": round(max(tally.waits, default=0.0), 3),
        },
    }
