"""How do commands print tables and JSON?"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click

from berth.api.meta import moment_of
from berth.units import show_seconds


def show_json(value: Any) -> None:
    """One JSON document on standard output."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def show_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns three spaces apart, as kubectl prints them; the last one is not padded."""
    for line in table_lines(headers, rows):
        click.echo(line)


def table_lines(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table; an empty cell reads ``-``."""
    whole = [[header.upper() for header in headers], *([cell or "-" for cell in r] for r in rows)]
    widths = [max(len(row[column]) for row in whole) for column in range(len(headers))]
    return [
        "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in whole
    ]


def show_age(stamp: str | None, now: float) -> str:
    """How long ago a moment was, for people; empty when it is not known."""
    if not stamp:
        return ""
    try:
        return show_seconds(max(0.0, round(now - moment_of(stamp))))
    except ValueError:
        return stamp
