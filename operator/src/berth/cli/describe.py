"""Who said each setting of a model? The whole chain, the hardware's layers too."""

import click

from berth.cli.cluster import Target, cluster_options
from berth.cli.errors import CommandError
from berth.cli.read import Reading, reading_options
from berth.cli.render import scene_of
from berth.cli.show import show_json, show_table
from berth.controller.priced import Priced


@click.group()
def describe() -> None:
    """Say where things come from."""


@describe.command()
@click.argument("model", required=False)
@click.option("-f", "--file", "path", metavar="FILE", help="Models and Profiles; - reads.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), help="On this instead of the first.")
@reading_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cluster_options
def settings(
    *,
    model: str | None,
    path: str | None,
    device: str | None,
    reading: Reading,
    target: Target,
    as_json: bool,
) -> None:
    """Show every setting of MODEL in force, and who said it.

    Layers, the lowest first: runtime, cluster, hardware, profile, model; literal flags in args or command come last
    and hide the field that they set.
    """
    scene, keys = scene_of(model, path, reading, target, attempted="describing settings")
    for key in keys:
        _show(key, scene.prices[key], device, as_json=as_json)


def _show(key: str, priced: Priced, device: str | None, *, as_json: bool) -> None:
    hardware = device or next(iter(priced.origins), "")
    rows = priced.origins.get(hardware)
    if rows is None:
        raise CommandError(
            f"describing the settings of model {key}",
            wrong=priced.blocked_message or f"its runtime does not run on {device}",
            todo="correct what is wrong, or name another --device",
        )
    if as_json:
        said = [{"setting": one.name, "value": one.value, "origin": one.origin} for one in rows]
        show_json({"model": key, "runtime": priced.runtime, "hardware": hardware, "settings": said})
        return
    click.echo(f"{key}: runtime {priced.runtime} on {hardware}")
    show_table(("setting", "value", "origin"), [(one.name, one.value, one.origin) for one in rows])
    for text in priced.warnings:
        click.echo(f"Warning: {text}.")
