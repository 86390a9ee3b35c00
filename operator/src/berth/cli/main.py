"""Which commands are there? The one table; a command's module is imported when it is called.

So `berth fit` needs no Kubernetes client, and an image of one program needs no other's libraries.
"""

import importlib
from dataclasses import dataclass

import click


@dataclass(frozen=True)
class Entry:
    """Where a command lives, ``module:attribute``, and its line in the list."""

    target: str
    summary: str


COMMANDS: dict[str, Entry] = {
    "agent": Entry("berth.cli.programs:agent", "Run the agent of one node."),
    "controller": Entry("berth.cli.programs:controller", "Run the controller."),
    "csi": Entry("berth.cli.programs:csi", "Run the volume driver of one node."),
    "describe": Entry("berth.cli.describe:describe", "Say who said each setting of a model."),
    "diff": Entry(
        "berth.cli.diff:diff", "Show what a change costs in bytes, and what it would evict."
    ),
    "doctor": Entry("berth.cli.doctor:doctor", "Check that Berth is installed and answers."),
    "explain": Entry("berth.cli.explain:explain", "Say why a model is not loaded, with numbers."),
    "fit": Entry("berth.cli.fit:fit", "Say how much memory a model takes, by kind and by device."),
    "gateway": Entry("berth.cli.programs:gateway", "Run the OpenAI endpoint."),
    "grant-token": Entry(
        "berth.cli.grant:grant_token", "Let Berth read one Secret that holds a token."
    ),
    "hold": Entry("berth.cli.hold:hold", "Take nodes for a command, or list and end such holds."),
    "kill": Entry("berth.cli.load:kill", "Kill a runner; the same as a crash."),
    "load": Entry("berth.cli.load:load", "Load a model and wait until it is up."),
    "models": Entry("berth.cli.models:models", "List every model with its state."),
    "plan": Entry(
        "berth.cli.plan:plan", "Say what would happen if a model, or a file, were asked for."
    ),
    "render": Entry(
        "berth.cli.render:render", "Print the Runner and the pod that would be made of a model."
    ),
    "settings": Entry("berth.cli.settings:settings", "Show every setting and what is in effect."),
    "simulate": Entry(
        "berth.cli.simulate:simulate", "Replay requests over a fleet, with the real planner."
    ),
    "snapshot": Entry(
        "berth.cli.snapshot:snapshot", "Print what the planner sees now, as JSON, to plan on."
    ),
    "unload": Entry("berth.cli.load:unload", "Unload a model and wait until it is gone."),
    "version": Entry("berth.cli.version:version", "Show the release of this command."),
}


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in sorted(COMMANDS)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Berth gives language models a berth: a node, a device, so many bytes."""


if __name__ == "__main__":
    main()
