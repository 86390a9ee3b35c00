"""How much memory will this model take? (No cluster needed, and nothing is downloaded but headers.)"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import yaml
from pydantic import ValidationError

from berth.api.profile import ProfileFields
from berth.cli.errors import CommandError
from berth.cli.fit_vllm import report, settings_of
from berth.estimator import Device, Estimate, Host, Settings
from berth.facts import Facts
from berth.headers import HeaderError, HeaderRequest, HubSource, PathSource, UrlSource
from berth.headers.read import read_source
from berth.headers.request import DEFAULT_ENDPOINT
from berth.runtimes.llamacpp import LlamaCpp
from berth.runtimes.llamacpp_flags import CommandLine, parse
from berth.units import parse_quantity, show_bytes

_HUB = re.compile(r"^hf://(?P<repo>[^@/]+/[^@/]+)(@(?P<revision>[^/]+))?(/(?P<file>.+))?$")
_GPUS = re.compile(r"^(?P<count>\d+)(x(?P<size>[^x:]+))?(:(?P<rules>cuda|rpc))?$")
MAX_CONTEXT = 1 << 24
RUNTIME = LlamaCpp()


class FitCommand(click.Command):
    """A command whose words after ``--`` are an engine's command line, kept apart from its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.obj = args[at + 1 :] if at < len(args) else None
        return super().parse_args(ctx, args[:at])


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

    def estimate(self, settings: Settings) -> Estimate:
        """The estimate with these settings."""
        return RUNTIME.estimate(
            self.facts,
            settings,
            devices=self.devices,
            host=self.host,
            projector=self.projector,
            adapters=self.adapters,
            draft=self.draft,
        )


@click.command(cls=FitCommand, epilog="After --: a llama-server command line, priced as it stands.")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
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
    if re.match(r"^0*$", options["gpus"]) is None and _GPUS.match(options["gpus"]) is None:
        raise CommandError(
            "read --gpus", wrong=f"{options['gpus']!r} is not N[xSIZE]", todo="write e.g. 2x24GiB"
        )
    read = [_read(source, options) for source in options["sources"]]
    tensors = next((facts for facts in read if facts.format == "safetensors"), None)
    if tensors is not None:
        click.echo(_vllm(tensors, options, ctx.obj))
        return
    subject = _subject(read, options, ctx.obj)
    try:
        found = subject.estimate(subject.settings)
    except ValueError as err:
        raise CommandError(
            "price the settings", wrong=str(err), todo="correct the flag or the field"
        ) from err
    found = replace(found, notes=(*found.notes, *_too_small(subject, found)))
    largest = _largest(subject, options["memory"]) if options["memory"] else None
    if options["as_json"]:
        row = found.to_json() | ({"largestContext": largest} if largest is not None else {})
        click.echo(json.dumps(row, indent=2))
    else:
        click.echo(_table(found))
        click.echo(_words(subject, found, largest, options["memory"]))


def _vllm(facts: Facts, options: dict[str, Any], words: Sequence[str] | None) -> str:
    cards = _devices(options["gpus"], None)
    settings = settings_of(facts, words, _profile_row(options), len(cards))
    return report(facts, settings, card=cards[0].memory if cards else 0, as_json=options["as_json"])


def _subject(read: list[Facts], options: dict[str, Any], words: Sequence[str] | None) -> Subject:
    line = _command_line(words) if words is not None else None
    models = [facts for facts in read if facts.kind == "model"]
    projectors = [facts for facts in read if facts.kind == "mmproj"]
    adapters = [facts for facts in read if facts.kind == "adapter"]
    if len(models) != 1:
        raise CommandError(
            "read the sources", wrong=f"{len(models)} of them are models", todo="name one model"
        )
    if line is not None:
        projectors += [_read(line.projector, options)] if line.projector else []
        adapters += [_read(path, options) for path in line.adapters]
    return Subject(
        facts=models[0],
        settings=line.settings if line is not None else _profile_settings(models[0], options),
        devices=_devices(options["gpus"], line),
        projector=projectors[0] if projectors else None,
        adapters=tuple(adapters),
        draft=_read(line.draft, options) if line is not None and line.draft else None,
        host=Host(options["cpu"]),
    )


def _command_line(words: Sequence[str]) -> CommandLine:
    try:
        return parse(words)
    except ValueError as err:
        raise CommandError(
            "read the command line", wrong=str(err), todo="correct the flag"
        ) from err


def _read(source: str, options: dict[str, Any]) -> Facts:
    match = _HUB.match(source)
    if match is not None:
        files = (match["file"],) if match["file"] else ()
        request = HeaderRequest(HubSource(match["repo"], match["revision"] or "main", files))
    elif re.match(r"^https?://", source):
        request = HeaderRequest(UrlSource(source))
    else:
        request = HeaderRequest(PathSource(source))
    # The command line is its user's own: any address may be reached, with that user's own token.
    everywhere = ("0.0.0.0/0", "::/0")
    try:
        return read_source(
            replace(request, endpoint=options["endpoint"], token=options["token"], allow=everywhere)
        ).facts
    except HeaderError as err:
        raise CommandError(
            f"read {source}", wrong=f"{err.reason}: {err.message}", todo="check the source"
        ) from err


def _profile_row(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of the profile's file, with those of ``--set`` over them."""
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
        inner = row
        *parents, last = key.split(".")
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = yaml.safe_load(value)
    return row


def _profile_settings(facts: Facts, options: dict[str, Any]) -> Settings:
    """The settings that Berth would start the model with under this profile."""
    try:
        return RUNTIME.settings(facts, ProfileFields.model_validate(_profile_row(options)))
    except (ValidationError, ValueError) as err:
        raise CommandError("read the profile", wrong=str(err), todo="correct the field") from err


def _devices(text: str, line: CommandLine | None) -> tuple[Device, ...]:
    """The accelerators given; those of ``--rpc`` too; of them only as many as ``--device`` names.

    A command line that names devices where none are given is believed.
    """
    match = _GPUS.match(text)
    assert match is not None
    size = parse_quantity(match["size"]) if match["size"] else 0
    rules = [match["rules"] or "cuda"] * int(match["count"])
    if line is not None:
        rules += ["rpc"] * len(line.rpc)
        if line.devices is not None:
            rules = rules[: len(line.devices)] or [_rules_of(name) for name in line.devices]
    return tuple(Device(f"GPU{number}", size, kind) for number, kind in enumerate(rules))


def _rules_of(name: str) -> str:
    return "rpc" if name.upper().startswith("RPC") else "cuda"


def _largest(subject: Subject, memory: str) -> int:
    """The most tokens a request (in steps of 256) with which the model fits in ``memory``; 0 where none does."""
    room, slots = parse_quantity(memory), subject.settings.slots

    def fits(steps: int) -> bool:
        found = subject.estimate(replace(subject.settings, context=steps * 256 * slots))
        needs = [int(nbytes) for _, nbytes in found.devices]
        return max(needs or [found.host.total]) <= room

    low, high = 0, MAX_CONTEXT // 256
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low * 256


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
