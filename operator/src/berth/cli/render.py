"""Which Runner and which pod would be made of a model? Printed, and nothing is asked of anybody."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click
import yaml

from berth.api.model import Model
from berth.api.runner import Runner as RunnerObject
from berth.cli.cluster import Target, cluster_options, run
from berth.cli.errors import CommandError
from berth.cli.forecast import forecast
from berth.cli.forecast_text import need_text
from berth.cli.read import Reading, load_objects, reading_options
from berth.cli.scene import Scene, bare_scene, key_of, live_scene
from berth.cli.show import show_json
from berth.controller.configured import pod_settings
from berth.controller.launch import Stamp, name_of, runner_spec
from berth.controller.priced import Priced
from berth.manifests.objects import runner as runner_body
from berth.manifests.pod import runner_pod
from berth.planner.actions import Place, Prepare, Reserve
from berth.planner.state import Claim, Need, Runner
from berth.reasons import Reason

NO_UID = "00000000-0000-0000-0000-000000000000"
"""What the API server would give."""
_TODO = {
    Reason.PROFILE_NOT_FOUND: "put the Profile into the same file",
    Reason.NEEDS_UNKNOWN: "name a local copy of the weights with --weights",
    Reason.READING_HEADER: "wait until the controller has read it, or use -f with --weights",
}


@dataclass(frozen=True)
class Rendered:
    """What would be made of one Model."""

    notes: tuple[str, ...]
    runner: dict[str, Any]
    pod: dict[str, Any]


@click.command()
@click.argument("model", required=False)
@click.option("-f", "--file", "path", metavar="FILE", help="Models and Profiles; - reads.")
@click.option(
    "--device", type=click.Choice(["cuda", "cpu"]), help="Render for this instead of the first way."
)
@click.option("--node", default="", help="Render for this node.")
@reading_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cluster_options
def render(
    *,
    model: str | None,
    path: str | None,
    device: str | None,
    node: str,
    reading: Reading,
    target: Target,
    as_json: bool,
) -> None:
    """Print the Runner and the pod that would be made of MODEL, or of the Models of a file.

    With -f no cluster is asked: only headers are read, from the source itself or from a local copy
    of the weights. What nobody can know without a cluster (node, device, uid, images) stands for itself.
    """
    scene, keys = scene_of(model, path, reading, target, attempted="rendering")
    found = [rendered(scene, key, device=device, node=node) for key in keys]
    if as_json:
        show_json([body for one in found for body in (one.runner, one.pod)])
    else:
        click.echo("".join(_lines(found)), nl=False)


def scene_of(
    model: str | None, path: str | None, reading: Reading, target: Target, *, attempted: str
) -> tuple[Scene, list[str]]:
    """The scene, and the keys of the Models that are asked about. Raises CommandError."""
    if bool(model) == bool(path):
        raise CommandError(
            attempted,
            wrong="name either a MODEL that is declared or a file with -f",
            todo="write MODEL, or -f model.yaml",
        )
    if path:
        applied = load_objects(path, target.in_namespace)
        return bare_scene(applied, reading), [m.key for m in applied if isinstance(m, Model)]
    wanted = f"{target.in_namespace}/{model}" if "/" not in str(model) else str(model)
    work = live_scene(target, subjects=frozenset({wanted}))
    scene = run(work, attempted="reading the cluster")
    return scene, [key_of(str(model), target.in_namespace, scene.state)]


def _lines(found: list[Rendered]) -> Iterator[str]:
    for one in found:
        yield "".join(f"# {note}\n" for note in one.notes)
        for body in (one.runner, one.pod):
            yield "---\n" + yaml.safe_dump(body, sort_keys=False, width=1000)


def rendered(scene: Scene, key: str, *, device: str | None, node: str) -> Rendered:
    """The objects of one Model. Raises CommandError where its size is not known."""
    priced = scene.prices[key]
    if not priced.needs:
        raise CommandError(
            f"rendering model {key}",
            wrong=priced.blocked_message or "its needs are not known",
            todo=_TODO.get(priced.blocked or Reason.NEEDS_UNKNOWN, "correct what is wrong"),
        )
    decision, note = _decision(scene, key, priced, device, node)
    model = _with_uid(scene.models[key])
    nodes = {known.name: known for known in scene.state.nodes}
    stamp = Stamp(scene.state.epoch, "dry-run")
    spec = runner_spec(decision, model, priced, nodes=nodes, stamp=stamp)
    body = runner_body(model, spec, name=name_of(decision, model))
    whole = body | {"metadata": body["metadata"] | {"uid": NO_UID}}
    pod = runner_pod(RunnerObject.model_validate(whole), pod_settings(scene.settings))
    command = f"the engine's command: {shlex.join(spec.command)}"
    hardware = "cuda" if decision.need.gpus else "cpu"
    notes = [f"{key}: {note}", f"needs {need_text(decision.need)}", command]
    notes += [
        f"{one.name}: {one.value}  ({one.origin})" for one in priced.origins.get(hardware, ())
    ]
    notes += [f"warning: {text}" for text in priced.warnings]
    return Rendered(tuple(notes), body, pod)


def _decision(
    scene: Scene, key: str, priced: Priced, device: str | None, node: str
) -> tuple[Prepare | Reserve, str]:
    """Where it would go. First that applies:

    1. As it was asked for: the way and the node of the options.
    2. Where the planner would put it now.
    3. Where it is loaded, with the settings of now.
    4. In the first way, on a node that stands for itself.
    """
    if not (device or node):
        placed = forecast(scene.state, [key]).outcomes[0].placed
        if placed:
            return placed[0], f"as the planner would place it now, on {placed[0].place.node}"
        loaded = next((r for r in scene.state.runners if r.model == key), None)
        again = _again(key, priced, loaded) if loaded is not None else None
        if again is not None:
            return again, f"as it would be loaded again on {again.place.node}"
    need = _way(key, priced, device or ("cpu" if scene.models[key].spec.device == "cpu" else None))
    known = next((n for n in scene.state.nodes if n.name == node), None)
    uuids = [d.uuid for d in known.devices] if known is not None else []
    uuids += [f"GPU-{index}" for index in range(len(uuids), len(need.gpus))]
    devices = tuple(uuids[: len(need.gpus)])
    claim = Claim(need.host, tuple(zip(devices, need.gpus, strict=True)))
    name = node or "node"
    note = f"for {node or device}, as asked"
    if not (node or device):
        note = "no place was planned for it: its node and devices stand for themselves"
    return Reserve(key, Place(name, devices), claim, need, 0, 0), note


def _again(key: str, priced: Priced, loaded: Runner) -> Reserve | None:
    """The place of a runner, with the first way that takes as many devices."""
    devices = tuple(uuid for uuid, _ in loaded.claim.devices)
    for need in priced.needs:
        if len(need.gpus) == len(devices):
            claim = Claim(need.host, tuple(zip(devices, need.gpus, strict=True)))
            place = Place(loaded.node, devices)
            return Reserve(key, place, claim, need, loaded.ordinal, loaded.attempt)
    return None


def _way(key: str, priced: Priced, device: str | None) -> Need:
    ways = [
        need for need in priced.needs if device is None or bool(need.gpus) == (device == "cuda")
    ]
    if not ways:
        raise CommandError(
            f"rendering model {key}",
            wrong=f"there is no runner image for {device}",
            todo="set one in the chart or in the Profile's images, or leave --device out",
        )
    return ways[0]


def _with_uid(model: Model) -> Model:
    if not model.metadata.uid.startswith("new/"):
        return model
    return model.model_copy(update={"metadata": model.metadata.model_copy(update={"uid": NO_UID})})
