"""What does the planner see now? The snapshot of a live cluster, to keep, to send, to plan on."""

import click

from berth.cli.cluster import Target, cluster_options, run
from berth.cli.scene import live_scene
from berth.planner.snapshot import state_to_json


@click.command()
@cluster_options
def snapshot(*, target: Target) -> None:
    """Print what the planner sees now, as JSON: berth snapshot > s.json.

    `plan`, `explain` and `simulate` take the file with --snapshot. It holds names of nodes, models
    and runners, and sizes; no token, no request, no file.
    """
    found = run(live_scene(target), attempted="taking a snapshot of the cluster")
    click.echo(state_to_json(found.state), nl=False)
