"""How does a person take nodes for a while? `berth hold`: one Hold, from its beginning to its end."""

import getpass
import secrets
import socket
import sys
import time

import click

from berth.api.hold import Hold
from berth.cli.cluster import Target, cluster_options, connected, get, list_all, run
from berth.cli.disturbed import Wanted
from berth.cli.errors import CommandError
from berth.cli.holding import carry_out, is_ended, release_hold, waits
from berth.cli.show import show_age, show_json, show_table
from berth.units import parse_duration

HEADERS = ("name", "held", "nodes", "holder", "reason", "budget", "age", "message")
_COMMAND = "berth.command"
_NO_TOGETHER = "--list, --release and nodes to take exclude each other"


class _BeforeCommand(click.Command):
    """What stands behind `--` is a command of its own, with options of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])


@click.command(cls=_BeforeCommand)
@click.argument("nodes", nargs=-1, metavar="NODE… [-- COMMAND…]")
@click.option(
    "--selector", "-l", multiple=True, help="Nodes with this label, KEY=VALUE; repeatable."
)
@click.option("--reason", default="", help="Why; shown to everybody whose model is away.")
@click.option("--budget", default="30m", show_default=True, help="How long it is meant to last.")
@click.option("--when-idle", is_flag=True, help="Begin once nothing on the nodes is in use.")
@click.option("--list", "lists", is_flag=True, help="List the holds and end.")
@click.option("--release", default="", metavar="NAME", help="End this hold of anybody's.")
@click.option("--json", "as_json", is_flag=True, help="With --list: print JSON.")
@cluster_options
def hold(
    *,
    nodes: tuple[str, ...],
    selector: tuple[str, ...],
    reason: str,
    budget: str,
    when_idle: bool,
    lists: bool,
    release: str,
    as_json: bool,
    target: Target,
) -> None:
    """Take NODE… for exclusive use, run COMMAND there being nothing else, and give them back.

    What is loaded there is drained and unloaded, and loaded again afterwards, however COMMAND ends;
    its exit code is the exit code. Without a COMMAND the hold lasts until --release or its budget.
    """
    if lists + bool(release) + bool(nodes or selector) != 1:
        raise CommandError(
            "holding nodes",
            wrong=_NO_TOGETHER if lists or release else "no node is named",
            todo="name nodes, a --selector, --list, or --release NAME",
        )
    if lists:
        _show(run(_list(target), attempted="listing the holds"), as_json=as_json)
        return
    if release:
        run(_release(release, target), attempted=f"releasing the hold {release}")
        click.echo(f"hold {release} is released")
        return
    wanted = Wanted(
        name=f"hold-{secrets.token_hex(4)}",
        nodes=nodes,
        selector=_pairs(selector),
        reason=reason,
        budget=_checked(budget),
        holder=f"{getpass.getuser()}@{socket.gethostname()}"[:253],
        command=click.get_current_context().meta[_COMMAND],
        when_idle=when_idle,
    )
    sys.exit(run(_hold(wanted, target), attempted=f"holding {wanted.where}"))


def _pairs(selector: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for entry in selector:
        key, separator, value = entry.partition("=")
        if not key or not separator:
            raise CommandError(
                "holding nodes",
                wrong=f"{entry!r} is not KEY=VALUE",
                todo="as in --selector gpu=h200",
            )
        found[key] = value
    return found


def _checked(budget: str) -> str:
    try:
        parse_duration(budget)
    except ValueError as err:
        raise CommandError("holding nodes", wrong=str(err), todo="as in --budget 30m") from err
    return budget


async def _hold(wanted: Wanted, target: Target) -> int:
    async with connected(target) as kube:
        return await carry_out(kube, wanted)


async def _list(target: Target) -> list[Hold]:
    async with connected(target) as kube:
        return sorted(await list_all(kube, Hold), key=lambda h: h.metadata.creation_timestamp)


async def _release(name: str, target: Target) -> None:
    async with connected(target) as kube:
        await release_hold(kube, await get(kube, Hold, name))


def _show(holds: list[Hold], *, as_json: bool) -> None:
    if as_json:
        show_json([hold.wire() for hold in holds])
    elif not holds:
        click.echo("There is no Hold.", err=True)
    else:
        show_table(HEADERS, [_row(hold, time.time()) for hold in holds])


def _row(hold: Hold, now: float) -> list[str]:
    held = next((c.status for c in hold.status.conditions if c.type == "Held"), "")
    spec = hold.spec
    return [
        hold.metadata.name,
        held,
        ",".join(hold.status.nodes or spec.nodes),
        spec.holder,
        spec.reason,
        spec.budget,
        show_age(hold.metadata.creation_timestamp, now),
        is_ended(hold) or waits(hold),
    ]
