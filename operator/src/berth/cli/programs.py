"""How is each program of Berth started? Its package is imported only here, when it is asked for."""

import importlib
from collections.abc import Callable

import click

from berth.cli.errors import CommandError


@click.command()
def controller() -> None:
    """Run the controller: it places, loads, unloads and heals runners.

    It reads its settings from BERTH_… variables; see `berth settings`.
    """
    _run("controller")


@click.command()
def agent() -> None:
    """Run the agent of the node that BERTH_NODE_NAME names.

    It fetches files, admits loads against live memory, and watches the node's runners.
    """
    _run("agent")


@click.command()
def csi() -> None:
    """Run the volume driver of the node that BERTH_NODE_NAME names.

    It mounts what the agent has lent to a runner's pod, when the kubelet asks.
    """
    _run("agent.csi", extra="agent")


@click.command()
def gateway() -> None:
    """Run the OpenAI endpoint: it passes requests to runners and holds them while a model loads."""
    _run("gateway")


def _run(program: str, *, extra: str = "") -> None:
    try:
        module = importlib.import_module(f"berth.{program}.main")
    except ModuleNotFoundError as err:
        raise CommandError(
            f"starting the {program}",
            wrong=f"the Python module {err.name} is not installed",
            todo=f"install berth-operator[{extra or program}]",
        ) from err
    run: Callable[[], None] = module.run
    run()
