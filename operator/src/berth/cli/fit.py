"""How much memory will this model take? (No cluster needed, and nothing is downloaded but headers.)"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from berth.cli.errors import CommandError
from berth.cli.fit_source import DEFAULT_ENDPOINT, read_facts, read_kind
from berth.cli.fit_vllm import report, settings_of
from berth.estimator import AUTO, Device, Estimate, Host, Settings, estimate
from berth.facts import Facts
from berth.runtimes.llamacpp import LlamaCpp
from berth.runtimes.llamacpp_flags import CommandLine, parse
from berth.units import GiB, parse_quantity, show_bytes

_GPUS = re.compile(r"^(?P<count>\d+)(x(?P<size>[^x:]+))?(:(?P<rules>cuda|rpc))?$")
MAX_CONTEXT = 1 << 24
MAX_GPUS = 256
USAGE = 2
"""The exit code when there is nothing to print: a source or a flag is wrong."""
FIT_MARGIN = GiB
"""What ``--fit on`` leaves free on each device (``--fit-target``)."""
RUNTIME = LlamaCpp()


class FitCommand(click.Command):
    """A command whose words after ``--`` are an engine's command line, kept apart from its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.obj = args[at + 1 :] if at < len(args) else None
        try:
            return super().parse_args(ctx, args[:at])
        except click.UsageError as err:
            if "--json" not in args[:at]:
                raise
            _say("read the options", err.format_message(), "see --help")
            ctx.exit(USAGE)


@dataclass(frozen=True, slots=True)
class Subject:
    """What is priced: a model, what is loaded beside it, and the settings."""

    facts: Facts
    settings: Settings
    devices: tuple[Device, ...]
    projector: Facts | None
    adapters: tuple[Facts, ...]
    draft: Facts | None
    host: Host
    unread: tuple[str, ...] = ()
    """Flags of the command line that are not known here."""
    shrinks: bool = False
    """Whether the engine takes less than it was asked for where less is free."""

    def estimate(self, settings: Settings) -> Estimate:
        """The estimate with these settings."""
        return estimate(
            self.facts,
            settings,
            devices=self.devices,
            host=self.host,
            projector=self.projector,
            adapters=self.adapters,
            draft=self.draft,
        )


@click.command(cls=FitCommand, epilog="After --: a llama-server command line, priced as it stands.")
@click.argument("sources", nargs=-1, metavar="[SOURCE...]")
@click.option(
    "--profile", "profile_file", metavar="FILE", help="A Profile (YAML) to take settings from."
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="A field of the Profile, e.g. parallel=2.",
)
@click.option(
    "--gpus",
    default="0",
    metavar="N[xSIZE]",
    help="Accelerators, e.g. 1x24GiB; :rpc for remote ones.",
)
@click.option("--memory", metavar="SIZE", help="Also say the largest context that fits in so much.")
@click.option(
    "--cpu", type=click.Choice(["avx2", "avx512", "arm"]), default="avx2", help="The host's CPU."
)
@click.option(
    "--endpoint", default=DEFAULT_ENDPOINT, envvar="HF_ENDPOINT", help="The hub behind hf://."
)
@click.option("--token", envvar="HF_TOKEN", help="A token for the hub.")
@click.option("--json", "as_json", is_flag=True, help="Bytes as JSON.")
@click.pass_context
def fit(ctx: click.Context, /, **options: Any) -> None:
    """Say how much memory a model takes, by kind and by device.

    SOURCE is a file, a folder of safetensors, an URL or hf://repo[@revision][/file]; a projector or an
    adapter beside a model is priced with it.
    """
    try:
        _fit(ctx, options)
    except CommandError as err:
        if not options["as_json"]:
            err.show()
        else:
            _say(err.attempted, err.wrong, err.todo)
        ctx.exit(USAGE)


def _say(attempted: str, wrong: str, todo: str) -> None:
    """An error as JSON."""
    said = {"attempted": attempted, "wrong": wrong, "todo": todo}
    click.echo(json.dumps({"error": said}, indent=2))


def _fit(ctx: click.Context, options: dict[str, Any]) -> None:
    sources = options["sources"] or _named_model(ctx.obj)
    if not sources:
        raise CommandError("read the sources", wrong="there is none", todo="name a file or -m FILE")
    read = [read_facts(source, options) for source in sources]
    tensors = next((facts for facts in read if facts.format == "safetensors"), None)
    if tensors is not None:
        click.echo(_vllm(tensors, options, ctx.obj))
        return
    line = _command_line(ctx.obj) if ctx.obj is not None else None
    devices = _devices(options["gpus"], line)
    subject = _subject(read, options, line, devices)
    try:
        found = subject.estimate(subject.settings)
    except ValueError as err:
        raise CommandError(
            "price the settings", wrong=str(err), todo="correct the flag or the field"
        ) from err
    notes = (
        *found.notes,
        *_unread(subject),
        *_assumed(subject, found),
        *_too_small(subject, found),
    )
    found = replace(found, notes=notes)
    largest = _largest(subject, options["memory"]) if options["memory"] else None
    if options["as_json"]:
        row = found.to_json() | ({"largestContext": largest} if largest is not None else {})
        click.echo(json.dumps(row, indent=2))
    else:
        click.echo(_table(found))
        click.echo(_words(subject, found, largest, options["memory"]))


def _named_model(words: Sequence[str] | None) -> list[str]:
    """The model that a command line names."""
    model = _command_line(words).model if words else None
    return [model] if model else []


def _vllm(facts: Facts, options: dict[str, Any], words: Sequence[str] | None) -> str:
    cards = _devices(options["gpus"], None)
    settings = settings_of(facts, words, _profile_row(options), len(cards))
    return report(facts, settings, card=cards[0].memory if cards else 0, as_json=options["as_json"])


def _subject(
    read: list[Facts],
    options: dict[str, Any],
    line: CommandLine | None,
    devices: tuple[Device, ...],
) -> Subject:
    models = [facts for facts in read if facts.kind == "model"]
    projectors = [facts for facts in read if facts.kind == "mmproj"]
    adapters = [facts for facts in read if facts.kind == "adapter"]
    if len(models) != 1:
        raise CommandError(
            "read the sources", wrong=f"{len(models)} of them are models", todo="name one model"
        )
    if line is not None:
        projectors += [read_kind(line.projector, "mmproj", options)] if line.projector else []
        adapters += [read_kind(path, "adapter", options) for path in line.adapters]
    return Subject(
        facts=models[0],
        settings=line.settings if line is not None else _profile_settings(models[0], options),
        devices=devices,
        projector=projectors[0] if projectors else None,
        adapters=tuple(adapters),
        draft=read_kind(line.draft, "model", options) if line is not None and line.draft else None,
        host=Host(options["cpu"]),
        unread=line.unknown if line is not None else (),
        shrinks=line is not None and line.fit == "on",
    )


def _command_line(words: Sequence[str]) -> CommandLine:
    try:
        return parse(words)
    except ValueError as err:
        raise CommandError(
            "read the command line", wrong=str(err), todo="correct the flag"
        ) from err


def _profile_row(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of the profile's file, with those of ``--set`` over them."""
    # Only here: a pasted command line needs no YAML.
    import yaml

    try:
        row: dict[str, Any] = {}
        if options["profile_file"]:
            loaded = yaml.safe_load(Path(options["profile_file"]).read_text(encoding="utf-8")) or {}
            row = dict(loaded.get("spec") or loaded)
        for pair in options["sets"]:
            key, separator, value = pair.partition("=")
            if not separator:
                raise CommandError(
                    "read --set", wrong=f"{pair!r} is not KEY=VALUE", todo="write e.g. parallel=2"
                )
            _put(row, key.split("."), yaml.safe_load(value))
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError) as err:
        raise CommandError("read the profile", wrong=str(err), todo="correct the field") from err
    return row


def _put(row: dict[str, Any], path: list[str], value: Any) -> None:
    for parent in path[:-1]:
        row = row.setdefault(parent, {})
    row[path[-1]] = value


def _profile_settings(facts: Facts, options: dict[str, Any]) -> Settings:
    """The settings that Berth would start the model with under this profile."""
    from pydantic import ValidationError

    from berth.api.profile import ProfileFields

    try:
        return RUNTIME.settings(facts, ProfileFields.model_validate(_profile_row(options)))
    except (ValidationError, ValueError) as err:
        raise CommandError("read the profile", wrong=str(err), todo="correct the field") from err


def _devices(text: str, line: CommandLine | None) -> tuple[Device, ...]:
    """The accelerators given; those of ``--rpc`` too; of them only as many as ``--device`` names.

    A command line that names devices where none are given is believed.
    """
    match = _GPUS.match(text)
    if match is None or int(match["count"]) > MAX_GPUS:
        raise CommandError("read --gpus", wrong=f"{text!r} is not N[xSIZE]", todo="write 2x24GiB")
    size = _quantity("--gpus", match["size"]) if match["size"] else 0
    rules = [match["rules"] or "cuda"] * int(match["count"])
    if line is not None:
        rules += ["rpc"] * len(line.rpc)
        if line.devices is not None:
            count = len(line.devices) if not rules else min(len(line.devices), len(rules))
            rules = [match["rules"] or _rules_of(name) for name in line.devices[:count]]
    return tuple(Device(f"GPU{number}", size, kind) for number, kind in enumerate(rules))


def _quantity(option: str, text: str) -> int:
    try:
        return parse_quantity(text)
    except ValueError as err:
        raise CommandError(f"read {option}", wrong=str(err), todo="write e.g. 24GiB") from err


def _rules_of(name: str) -> str:
    return "rpc" if name.upper().startswith("RPC") else "cuda"


def _largest(subject: Subject, memory: str) -> int:
    """The most tokens a request (in steps of 256) with which the model fits in ``memory``; 0 where none does."""
    room, slots = _quantity("--memory", memory), subject.settings.slots

    def fits(steps: int) -> bool:
        found = subject.estimate(replace(subject.settings, context=steps * 256 * slots))
        needs = [int(nbytes) for _, nbytes in found.devices]
        return max(needs or [found.host.total]) <= room

    low, high = 0, MAX_CONTEXT // 256
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low * 256


def _unread(subject: Subject) -> list[str]:
    """What of the command line was not understood."""
    names = ", ".join(dict.fromkeys(subject.unread))
    return [f"not known here, and priced as if it moved no byte: {names}"] if names else []


def _assumed(subject: Subject, found: Estimate) -> list[str]:
    """What a command line leaves to llama-server, and what was priced in its place: all of it."""
    settings = subject.settings
    open_ = [
        *(["the layers on devices"] if settings.n_gpu_layers == AUTO and subject.devices else []),
        *(["the context"] if settings.context == 0 else []),
    ]
    if not subject.shrinks or not open_:
        return []
    sizes = {device.name: device.memory for device in subject.devices}
    tight = [name for name, nbytes in found.devices if sizes[name] < nbytes + FIT_MARGIN]
    if found.devices and not tight:
        return []
    where = f" on {', '.join(tight)}" if tight else ""
    layers = "all layers, " if subject.devices else ""
    return [
        f"left to llama-server (--fit on): {' and '.join(open_)}; it shrinks them until {show_bytes(FIT_MARGIN)} is"
        f" free{where}; priced are {layers}{found.tokens} tokens"
    ]


def _too_small(subject: Subject, found: Estimate) -> list[str]:
    """What does not fit in the accelerators' memory, where that is given."""
    sizes = {device.name: device.memory for device in subject.devices}
    return [
        f"{name} has {show_bytes(sizes[name])} and {show_bytes(nbytes)} are needed"
        for name, nbytes in found.devices
        if 0 < sizes[name] < nbytes
    ]


def _table(found: Estimate) -> str:
    heads = ("", "weights", "context", "compute", "output", "total")
    rows: list[tuple[str, ...]] = [heads]
    for owner, one in found.buffers.items():
        rows.append(
            (
                owner,
                *(
                    show_bytes(part)
                    for part in (one.model, one.context, one.compute, one.output, one.total)
                ),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _words(subject: Subject, found: Estimate, largest: int | None, memory: str | None) -> str:
    lines = ["", f"Needs {found.sentence}."]
    lines.append(
        f"Host: {show_bytes(found.host.anonymous)} of its own and {show_bytes(found.host.file)} of file pages."
    )
    lines += [
        f"{name}: {show_bytes(nbytes)} with the driver's part." for name, nbytes in found.devices
    ]
    if largest is not None:
        most = f"{largest} tokens a request" if largest else "no context at all"
        lines.append(f"In {memory} fits {most}, {found.parallel} at once.")
    lines += [f"Refused by the engine: {refusal}." for refusal in found.refusals]
    lines += [f"Note: {note}." for note in found.notes]
    return "\n".join(lines)
