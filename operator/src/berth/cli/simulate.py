"""How would a fleet stand these requests? The real planner, on a clock of its own; no cluster."""

import click

from berth.cli.errors import CommandError
from berth.cli.read import Reading, token_option
from berth.cli.show import show_json
from berth.cli.simulation.fleet import read_fleet, snapshot_fleet
from berth.cli.simulation.report import report_lines, report_wire, timeline_lines
from berth.cli.simulation.trace import read_trace
from berth.cli.simulation.world import World


@click.command()
@click.option("-f", "--file", "path", metavar="FILE", help="The fleet: nodes and models.")
@click.option("--snapshot", metavar="FILE", help="The fleet of a snapshot, and what it has loaded.")
@click.option(
    "--trace", metavar="FILE", required=True, help="The requests: JSON lines (.jsonl) or YAML."
)
@token_option
@click.option("--timeline", is_flag=True, help="Also show every load, unload and refusal.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def simulate(
    *,
    path: str | None,
    snapshot: str | None,
    trace: str,
    token: str | None,
    timeline: bool,
    as_json: bool,
) -> None:
    """Replay a trace of requests over a fleet: loads, evictions, waits and refusals.

    The planner is the controller's own; loads, answers and stops take the time that the fleet's file
    says. The same files always give the same report.
    """
    fleet = read_fleet(path, Reading(token=token)) if path and not snapshot else None
    if snapshot and not path:
        fleet = snapshot_fleet(snapshot)
    if fleet is None:
        raise CommandError(
            "simulating",
            wrong="name a fleet with either -f or --snapshot",
            todo="write `berth simulate -f fleet.yaml --trace trace.yaml`",
        )
    seconds = {key: spans.request for key, spans in fleet.spans.items()}
    world = World(fleet, read_trace(trace, fleet.names, seconds))
    world.run()
    start, end = fleet.state.now, world.now
    if as_json:
        show_json(report_wire(world.tallies, world.happenings, start=start, end=end))
        return
    lines = report_lines(world.tallies, world.happenings, start=start, end=end)
    if timeline:
        lines += ["", *timeline_lines(world.happenings, start=start)]
    click.echo("\n".join(lines))
