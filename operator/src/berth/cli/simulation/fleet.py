"""Which nodes and models are simulated? Read from a file, or from a snapshot of a real cluster."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError

from berth.api.meta import GROUP, Duration, Labels, Quantity, Resource, Wire, bytes_of, seconds_of
from berth.api.model import Model as ModelObject
from berth.cli.errors import CommandError
from berth.cli.read import (
    Reading,
    check_fields,
    load_documents,
    parsed,
    read_sources,
    told,
)
from berth.cli.scene import assumed_images, load_snapshot
from berth.controller.onlooker import Terms, declare, look
from berth.controller.store import Store
from berth.planner.state import Model, Need, State
from berth.settings import REGISTRY, Settings
from berth.units import Bytes

START = 1000.0
"""The planner takes a moment of 0 for "never"."""
_GPUS = re.compile(r"^(\d+)x(.+)$")
_UNLIMITED = 1 << 50


class Entry(Wire):
    model_config = ConfigDict(extra="forbid")


class NodeEntry(Entry):
    """A node, or ``count`` of them named ``NAME-1`` and so on."""

    name: str = Field(min_length=1)
    count: int = Field(default=1, ge=1, le=10_000)
    memory: Quantity
    used: Quantity = "0"
    """Host memory that others hold."""
    gpus: str | list[Quantity] = []
    """``2x24GiB``, or the memory of each."""
    unified: bool = False
    labels: Labels = {}


class Times(Entry):
    """How long things take, of one model or of all."""

    load: Duration | None = None
    stop: Duration | None = None
    fetch: Duration | None = None
    request: Duration | None = None


class ModelEntry(Times):
    """What a model needs and how long it takes. Fields of a Model's spec may stand beside these."""

    name: str = Field(min_length=1)
    namespace: str = "default"
    gpu: Quantity | list[Quantity] | None = None
    """Bytes on each device that it runs on; none: the CPU."""
    host: Quantity | None = None
    parallel: int = Field(default=1, ge=1)


class FleetFile(Entry):
    nodes: Annotated[list[NodeEntry], Field(min_length=1)]
    models: list[dict[str, Any]] = []
    times: Times = Times()
    settings: dict[str, str | int | float] = {}


@dataclass(frozen=True)
class Spans:
    """Seconds that a model's steps take."""

    load: float
    stop: float
    fetch: float
    request: float


@dataclass(frozen=True)
class Fleet:
    """What is simulated: the cluster at the start, and how long each model's steps take."""

    state: State
    spans: Mapping[str, Spans]
    queue_timeout_s: float

    @property
    def names(self) -> Mapping[str, str]:
        """The key of each model by key and, where it is the only one so called, by name."""
        keys = [model.key for model in self.state.models]
        short = [key.rpartition("/")[2] for key in keys]
        alone = {name: key for name, key in zip(short, keys, strict=True) if short.count(name) == 1}
        return alone | {key: key for key in keys}


DEFAULTS = Spans(load=30.0, stop=5.0, fetch=60.0, request=10.0)


def snapshot_fleet(path: str) -> Fleet:
    """The fleet of a snapshot; measured load times count."""
    state = load_snapshot(path)
    spans = {
        model.key: replace(DEFAULTS, load=model.load_seconds or DEFAULTS.load)
        for model in state.models
    }
    return Fleet(state, spans, Settings({}).seconds("QUEUE_TIMEOUT"))


def read_fleet(path: str, reading: Reading) -> Fleet:
    """A fleet file: one document with nodes and models, and objects of ours beside it."""
    documents = load_documents(path)
    ours = [body for body in documents if str(body.get("apiVersion")).startswith(f"{GROUP}/")]
    others = [body for body in documents if body not in ours]
    if len(others) != 1:
        raise CommandError(
            f"reading the fleet {path}",
            wrong=f"it has {len(others)} documents with nodes",
            todo="write one document with `nodes`, and Models, Profiles, Residencies beside it",
        )
    try:
        file = FleetFile.model_validate(others[0])
    except ValidationError as err:
        raise _wrong(path, told(err)) from err
    return _fleet(path, file, [parsed(path, body, "default") for body in ours], reading)


def _fleet(path: str, file: FleetFile, objects: Sequence[Resource], reading: Reading) -> Fleet:
    settings, store = _settings(path, file.settings), Store()
    for node in file.nodes:
        _put_nodes(store, node)
    entries = {}
    for row in file.models:
        entry, model = _model(path, row)
        entries[f"{entry.namespace}/{entry.name}"] = entry
        if model is not None:
            declare(store, model)
    for found in objects:
        declare(store, found)
    given = {key for key, entry in entries.items() if _need(entry) is not None}
    real = [model for key, model in store.models.items() if key not in given]
    read = read_sources(real, store, reading, settings)
    state = look(store, Terms(settings, assumed_images(settings), START), read).state
    models = tuple(_sized(model, entries.get(model.key)) for model in state.models)
    _check_known(path, models, entries)
    spans = {model.key: _spans(file.times, entries.get(model.key)) for model in models}
    models = tuple(_with_file(model, spans[model.key]) for model in models)
    state = replace(state, models=models, healthy_since=-1e9)
    return Fleet(state, spans, settings.seconds("QUEUE_TIMEOUT"))


def _settings(path: str, given: Mapping[str, Any]) -> Settings:
    unknown = given.keys() - {setting.name for setting in REGISTRY}
    if unknown:
        raise _wrong(path, f"settings: {min(unknown)} is none (`berth settings` lists them)")
    return Settings({f"BERTH_{name}": str(value) for name, value in given.items()})


def _put_nodes(store: Store, entry: NodeEntry) -> None:
    names = (
        [entry.name] if entry.count == 1 else [f"{entry.name}-{n + 1}" for n in range(entry.count)]
    )
    for name in names:
        memory, gpus = bytes_of(entry.memory), _gpus(entry)
        meta = {"name": name, "labels": entry.labels, "uid": name}
        store.nodes.put({"metadata": meta, "status": _node_status(memory)})
        devices = [
            {"uuid": f"GPU-{name}-{i}", "index": i, "memory": m, "unified": entry.unified}
            for i, m in enumerate(gpus)
        ]
        host = {"total": memory, "available": memory - bytes_of(entry.used)}
        told_by_agent = {"host": host, "devices": devices, "diskFree": _UNLIMITED}
        store.inventories.put({"metadata": {"name": name, "uid": name}, "status": told_by_agent})


def _node_status(memory: Bytes) -> dict[str, Any]:
    size = {"memory": str(memory), "pods": "100000"}
    ready = [{"type": "Ready", "status": "True"}]
    return {"capacity": size, "allocatable": size, "conditions": ready}


def _gpus(entry: NodeEntry) -> list[Bytes]:
    if not isinstance(entry.gpus, str):
        return [bytes_of(size) for size in entry.gpus]
    match = _GPUS.match(entry.gpus)
    try:
        return [bytes_of(match[2])] * int(match[1]) if match else [bytes_of(entry.gpus)]
    except ValueError as err:
        raise CommandError(
            f"reading node {entry.name}",
            wrong=f"gpus: {entry.gpus!r} is not N times a size",
            todo="write e.g. 2x24GiB",
        ) from err


def _model(path: str, row: dict[str, Any]) -> tuple[ModelEntry, ModelObject | None]:
    """An entry, and the Model that it stands for; None where a Model is declared beside it."""
    own = {key: value for key, value in row.items() if key in ModelEntry.model_fields}
    spec = {key: value for key, value in row.items() if key not in own}
    try:
        entry = ModelEntry.model_validate(own)
        if _need(entry) is None:
            if spec:
                raise _wrong(path, f"model {entry.name}: {min(spec)} belongs into its Model")
            return entry, None
        meta = {"name": entry.name, "namespace": entry.namespace}
        source = {"url": {"uri": f"https://simulated.example/{entry.name}"}}
        model = ModelObject.model_validate({"metadata": meta, "spec": {"source": source, **spec}})
    except ValidationError as err:
        raise _wrong(path, f"model {row.get('name', '')}: {told(err)}") from err
    check_fields(model, spec, f"model {entry.name}")
    return entry, model


def _need(entry: ModelEntry | None) -> Need | None:
    if entry is None or (entry.gpu is None and entry.host is None):
        return None
    sizes = entry.gpu if isinstance(entry.gpu, list) else [entry.gpu] if entry.gpu else []
    return Need(host=bytes_of(entry.host or "0"), gpus=tuple(bytes_of(size) for size in sizes))


def _sized(model: Model, entry: ModelEntry | None) -> Model:
    need = _need(entry)
    if need is None or entry is None:
        return model
    return replace(
        model,
        needs=(need,),
        blocked=None,
        blocked_message="",
        parallel=entry.parallel,
        settings_hash="simulated",
    )


def _check_known(path: str, models: Sequence[Model], entries: Mapping[str, ModelEntry]) -> None:
    keys = {model.key for model in models}
    missing = sorted(entries.keys() - keys)
    if missing:
        raise _wrong(path, f"model {missing[0]} has neither gpu nor host, and is not declared")
    blocked = next((model for model in models if model.blocked is not None), None)
    if blocked is not None:
        raise _wrong(path, f"model {blocked.key}: {blocked.blocked_message}")


def _spans(common: Times, entry: ModelEntry | None) -> Spans:
    """The model's own times, then the file's, then the defaults; files are there unless it is said
    how long they take to fetch."""
    found = {}
    for name in ("load", "stop", "fetch", "request"):
        said = [getattr(times, name) for times in (entry, common) if times is not None]
        told_s = next((seconds_of(text) for text in said if text is not None), None)
        default = 0.0 if name == "fetch" else getattr(DEFAULTS, name)
        found[name] = default if told_s is None else told_s
    return Spans(**found)


def _with_file(model: Model, spans: Spans) -> Model:
    """A file to fetch where fetching takes time; its size decides nothing here."""
    files = ((f"file-{model.key}", Bytes(1)),) if spans.fetch else ()
    load = spans.load if model.load_seconds is None else model.load_seconds
    return replace(model, files=files, load_seconds=load)


def _wrong(path: str, wrong: str) -> CommandError:
    return CommandError(
        f"reading the fleet {path}", wrong=wrong, todo="see docs/how-to/plan-and-simulate.md"
    )
