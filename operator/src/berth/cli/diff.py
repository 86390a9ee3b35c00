"""What would a change of Models, Profiles or a Residency cost, and whom would it evict?"""

from collections.abc import Iterator
from typing import Any

import click

from berth.api.meta import Resource
from berth.api.model import Model
from berth.cli.cluster import Target, cluster_options, run
from berth.cli.compare import Comparison, Going, ModelChange, PlaceChange, Way, compare
from berth.cli.forecast import Outcome, runner_where, where
from berth.cli.forecast_text import action_wire, headline, outcome_wire
from berth.cli.plan import changed_models, check_dumpable, snapshot_option
from berth.cli.read import Reading, load_objects, reading_options
from berth.cli.scene import Scene, dumped_scene, live_scene
from berth.cli.show import show_json, table_lines
from berth.planner.actions import Drain
from berth.planner.snapshot import dump
from berth.planner.state import Need, State
from berth.units import show_bytes

_MODEL_HEADERS = ("model", "way", "each device", "after", "host", "after", "change")
_PLACE_HEADERS = ("place", "held", "after", "change", "for runners", "after", "")


@click.command()
@click.option(
    "-f",
    "--file",
    "path",
    metavar="FILE",
    required=True,
    help="Models, Profiles and Residencies as they are to become; - reads.",
)
@snapshot_option
@reading_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cluster_options
def diff(
    *, path: str, snapshot: str | None, reading: Reading, target: Target, as_json: bool
) -> None:
    """Show worst-case bytes before and after a change, by model and place, and what it would evict.

    A changed Profile shows every Model that uses it. Nothing is applied.
    """
    applied = load_objects(path, target.in_namespace)
    if snapshot:
        check_dumpable(applied)
        scene = dumped_scene(snapshot, applied, reading)
    else:
        work = live_scene(target, applied, reading, subjects=frozenset())
        scene = run(work, attempted="reading the cluster")
    found = compare(scene.before, scene.state, _subjects(applied, scene))
    if as_json:
        show_json(comparison_wire(found))
    else:
        click.echo("\n".join(comparison_lines(scene.before, found)))


def _subjects(applied: list[Resource], scene: Scene) -> list[str]:
    """The Models of the file, and those that change by it."""
    own = [found.key for found in applied if isinstance(found, Model)]
    return sorted({*own, *changed_models(scene)})


def comparison_lines(before: State, found: Comparison) -> list[str]:
    """Tables for people; one sentence where nothing changes."""
    parts = [
        _section("Worst case of one runner", _MODEL_HEADERS, list(_model_rows(found))),
        ["If asked for", *(f"  {line}" for line in _asked_lines(before, found))]
        if found.models
        else [],
        _section("Worst case of what is loaded", _PLACE_HEADERS, list(_place_rows(found))),
        ["Would go", *(f"  {_going_line(found.state, one)}" for one in found.going)]
        if found.going
        else [],
    ]
    lines: list[str] = []
    for part in parts:
        lines += [*([""] if lines and part else []), *part]
    if not found.going and lines:
        lines += ["", "Nothing that is loaded would go for it at once."]
    return lines or ["Nothing changes: no bytes, no place, no runner."]


def _section(title: str, headers: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [title, *(f"  {line}" for line in table_lines(headers, rows))] if rows else []


def _model_rows(found: Comparison) -> Iterator[tuple[str, ...]]:
    for change in found.models:
        for way in change.ways:
            yield (change.key, _way_name(way), *_sizes(way), _way_change(way))


def _way_name(way: Way) -> str:
    names = {0: "host", 1: "1 device"}
    return names.get(way.devices, f"{way.devices} devices")


def _sizes(way: Way) -> tuple[str, str, str, str]:
    before, after = way.before, way.after
    return (_device(before), _device(after), _host(before), _host(after))


def _device(need: Need | None) -> str:
    return show_bytes(max(need.gpus)) if need is not None and need.gpus else ""


def _host(need: Need | None) -> str:
    return show_bytes(need.host) if need is not None else ""


def _way_change(way: Way) -> str:
    before, after = way.before, way.after
    if before is None or after is None:
        return "new" if before is None else "gone"
    return _change(sum(after.gpus) + after.host - sum(before.gpus) - before.host)


def _change(size: int) -> str:
    """``+6.3 GiB``."""
    sign = "+" if size > 0 else "-"
    return f"{sign}{show_bytes(abs(size))}" if size else "none"


def _asked_lines(before: State, found: Comparison) -> Iterator[str]:
    for change in found.models:
        first = _short(before, change.before) if change.before is not None else "not declared"
        then = _short(found.state, change.after)
        same = first == then
        yield f"{change.key}: {then}, as before" if same else f"{change.key}: {first} → {then}"


def _short(state: State, outcome: Outcome) -> str:
    """Where it would go, and for whom; or the refusal."""
    if not outcome.placed:
        return headline(state, outcome)
    places = ", ".join(where(state, made.place) for made in outcome.placed)
    models = {victim.runner.model for victim in (outcome.then or outcome).victims}
    names = ", ".join(sorted(models - {outcome.model.key}))
    again = any(runner.model == outcome.model.key for runner in state.runners)
    return f"{'again ' if again else ''}on {places}{f', evicting {names}' if names else ''}"


def _place_rows(found: Comparison) -> Iterator[tuple[str, ...]]:
    for place in found.places:
        change = place.held_after - place.held_before
        yield (
            f"{place.node} {place.place}",
            show_bytes(place.held_before),
            show_bytes(place.held_after),
            _change(change),
            show_bytes(place.room_before),
            show_bytes(place.room_after),
            f"over by {show_bytes(place.over)}" if place.over else "fits",
        )


def _going_line(state: State, one: Going) -> str:
    verb = "drains" if isinstance(one.action, Drain) else "is stopped"
    newcomer = one.action.newcomer if isinstance(one.action, Drain) else ""
    why = f" for {newcomer}" if newcomer and newcomer != one.runner.model else ""
    place = runner_where(state, one.runner)
    return f"{one.runner.model} on {place} ({one.runner.name}) {verb}: {one.action.reason}{why}"


# JSON.


def comparison_wire(found: Comparison) -> dict[str, Any]:
    """What ``--json`` says; bytes are numbers."""
    return {
        "models": [_model_wire(change) for change in found.models],
        "places": [_place_wire(place) for place in found.places],
        "going": [
            {"model": one.runner.model, "runner": one.runner.name, **action_wire(one.action)}
            for one in found.going
        ],
    }


def _model_wire(change: ModelChange) -> dict[str, Any]:
    return {
        "model": change.key,
        "ways": [
            {
                "devices": way.devices,
                "before": dump(way.before) if way.before is not None else None,
                "after": dump(way.after) if way.after is not None else None,
            }
            for way in change.ways
        ],
        "before": outcome_wire(change.before) if change.before is not None else None,
        "after": outcome_wire(change.after),
    }


def _place_wire(place: PlaceChange) -> dict[str, Any]:
    return {
        "node": place.node,
        "place": place.place,
        "heldBefore": place.held_before,
        "heldAfter": place.held_after,
        "roomBefore": place.room_before,
        "roomAfter": place.room_after,
        "overBy": place.over,
    }
