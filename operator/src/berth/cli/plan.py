"""What would happen if this were asked for now? Nothing is touched."""

from collections.abc import Sequence

import click

from berth.api.meta import Resource
from berth.api.model import Model
from berth.cli.cluster import Target, cluster_options, run
from berth.cli.errors import CommandError
from berth.cli.forecast import forecast
from berth.cli.forecast_text import forecast_lines, forecast_wire
from berth.cli.read import Reading, load_objects, reading_options
from berth.cli.scene import Scene, dumped_scene, key_of, live_scene
from berth.cli.show import show_json

file_option = click.option(
    "-f", "--file", "path", metavar="FILE", help="Objects to plan as if they were applied; - reads."
)
snapshot_option = click.option(
    "--snapshot", metavar="FILE", help="Plan on this snapshot instead of the live cluster."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command()
@click.argument("model", required=False)
@file_option
@snapshot_option
@reading_options
@json_option
@cluster_options
def plan(
    *,
    model: str | None,
    path: str | None,
    snapshot: str | None,
    reading: Reading,
    target: Target,
    as_json: bool,
) -> None:
    """Say what would happen if MODEL, or the Models of a file, were asked for now.

    Where each would go, who would have to make room, or why it is refused, in numbers. The planner
    of the controller answers, and nothing is touched.
    """
    _check(model, path)
    namespace = target.in_namespace
    applied = load_objects(path, namespace) if path else []
    if snapshot:
        check_dumpable(applied)
        scene = dumped_scene(snapshot, applied, reading)
    else:
        named = frozenset({model if "/" in model else f"{namespace}/{model}"} if model else ())
        work = live_scene(target, applied, reading, subjects=named)
        scene = run(work, attempted="reading the cluster")
    keys = [key_of(model, namespace, scene.state)] if model else subjects(applied, scene)
    found = forecast(scene.state, keys)
    if as_json:
        show_json(forecast_wire(found))
    else:
        click.echo("\n".join([*forecast_lines(found), "", "Nothing was touched."]))


def _check(model: str | None, path: str | None) -> None:
    if bool(model) == bool(path):
        raise CommandError(
            "planning",
            wrong="name either a MODEL that is declared or a file with -f",
            todo="write `berth plan MODEL` or `berth plan -f model.yaml`",
        )


def check_dumpable(applied: Sequence[Resource]) -> None:
    """A snapshot knows nodes by what their policy says, not by which object said it."""
    others = sorted({type(found).__name__ for found in applied} - {"Model", "Profile"})
    if others:
        raise CommandError(
            "planning on a snapshot",
            wrong=f"the file declares a {others[0]}, and a snapshot holds no such objects",
            todo="leave --snapshot out to plan on the live cluster, or declare Models and Profiles alone",
        )


def subjects(applied: Sequence[Resource], scene: Scene) -> list[str]:
    """The Models that a file is about: its own, else those that use a Profile of it."""
    own = [found.key for found in applied if isinstance(found, Model)]
    if own:
        return own
    changed = changed_models(scene)
    if not changed:
        raise CommandError(
            "planning the file",
            wrong="it declares no Model, and no declared Model changes by it",
            todo="see `berth diff -f` for what it changes of the nodes",
        )
    return changed


def changed_models(scene: Scene) -> list[str]:
    """Keys of the Models whose needs or settings differ from before."""
    before = {model.key: model for model in scene.before.models}
    return [
        model.key
        for model in scene.state.models
        if model.key not in before
        or (model.needs, model.settings_hash, model.blocked)
        != (
            before[model.key].needs,
            before[model.key].settings_hash,
            before[model.key].blocked,
        )
    ]
