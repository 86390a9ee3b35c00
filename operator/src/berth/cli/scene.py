"""On which snapshot does a command plan: the live cluster's or a file's, with which objects applied?"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from berth.api.meta import Resource
from berth.api.model import Model
from berth.api.profile import Profile
from berth.cli.cluster import Target, connected
from berth.cli.errors import CommandError
from berth.cli.read import Reading, read_sources
from berth.controller.configured import price_settings
from berth.controller.onlooker import (
    Sight,
    Terms,
    claim_of,
    declare,
    look,
    read_store,
    read_volumes,
)
from berth.controller.priced import Priced
from berth.controller.pricing import PriceSettings
from berth.controller.store import Store
from berth.kube.client import ApiError, Kube
from berth.kube.refs import CONFIG_MAPS
from berth.planner.snapshot import state_from_json
from berth.planner.state import Model as ModelSeen
from berth.planner.state import State
from berth.runtimes.registry import registry
from berth.settings import Settings

CONFIG_MAP = "berth-settings"


@dataclass(frozen=True)
class Scene:
    """A snapshot with the objects of a file applied, and the one before it."""

    state: State
    before: State
    models: Mapping[str, Model]
    """Declared, by key; of a dumped snapshot those of the file alone."""
    prices: Mapping[str, Priced]
    prices_before: Mapping[str, Priced]
    settings: Settings


async def live_scene(
    target: Target,
    applied: Sequence[Resource] = (),
    reading: Reading | None = None,
    *,
    subjects: frozenset[str] | None = None,
) -> Scene:
    """The cluster now; then with what is ``applied``. Raises ApiError, ApiUnreachableError.

    ``subjects``: keys of the Models that are asked about, beside those that ``applied`` concerns;
    None: all.
    """
    async with connected(target) as kube:
        settings, is_known = await _settings(kube)
        store = await read_store(kube)
        declared = [found for found in applied if isinstance(found, Model)]
        claims = {claim_of(model) for model in [*store.models, *declared]} - {""}
        volumes = await read_volumes(kube, claims)
    images = price_settings(settings) if is_known else assumed_images(settings)
    if subjects is not None:
        subjects |= _concerned(applied, store)
    terms = Terms(settings, images, time.time(), subjects, volumes)
    before = look(store, terms, {})
    after = _applied(store, applied, reading or Reading(), terms, before)
    models = dict(store.models.items())
    return Scene(after.state, before.state, models, after.prices, before.prices, settings)


def _concerned(applied: Sequence[Resource], store: Store) -> frozenset[str]:
    """Keys of the Models that objects declare, or run with a Profile of theirs."""
    profiles = {found.key for found in applied if isinstance(found, Profile)}
    using = {
        key
        for key, model in store.models.items()
        if f"{model.metadata.namespace}/{model.spec.profile}" in profiles
    }
    return frozenset(using | {found.key for found in applied if isinstance(found, Model)})


def dumped_scene(path: str, applied: Sequence[Resource], reading: Reading) -> Scene:
    """A snapshot out of a file; the Models of ``applied`` join it, or take the place of theirs."""
    before = load_snapshot(path)
    bare = bare_scene(applied, reading, before.now)
    known = {model.key: model for model in before.models}
    joined = {model.key: _joined(known.get(model.key), model) for model in bare.state.models}
    models = tuple(joined.pop(model.key, model) for model in before.models)
    state = replace(before, models=(*models, *joined.values()))
    return replace(bare, state=state, before=before)


def bare_scene(applied: Sequence[Resource], reading: Reading, now: float = 0.0) -> Scene:
    """No cluster: the objects of a file alone."""
    settings, store, nothing = Settings(), Store(), State(now, 0)
    terms = Terms(settings, assumed_images(settings), now)
    after = _applied(store, applied, reading, terms, Sight(nothing, {}))
    return Scene(after.state, nothing, dict(store.models.items()), after.prices, {}, settings)


def load_snapshot(path: str) -> State:
    """The State of a file that `berth snapshot`, or the controller, has written."""
    try:
        return state_from_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise CommandError(
            f"reading the snapshot {path}",
            wrong=str(err.strerror if isinstance(err, OSError) else err),
            todo="write one with `berth snapshot > s.json`",
        ) from err


def _applied(
    store: Store, applied: Sequence[Resource], reading: Reading, terms: Terms, before: Sight
) -> Sight:
    if not applied:
        return before
    for found in applied:
        declare(store, found)
    named = [store.models.get(found.key) for found in applied if isinstance(found, Model)]
    models = [model for model in named if model is not None]
    return look(store, terms, read_sources(models, store, reading, terms.settings))


def _joined(known: ModelSeen | None, declared: ModelSeen) -> ModelSeen:
    """A Model of the file with what the snapshot knows of its use and its past."""
    if known is None:
        return declared
    return replace(
        declared,
        uid=known.uid,
        waiting=known.waiting,
        waiting_since=known.waiting_since,
        used=known.used,
        load_asked=known.load_asked,
        unload_asked=known.unload_asked,
        not_before=known.not_before,
        load_seconds=known.load_seconds,
        restarts=known.restarts,
        autoload_done=known.autoload_done,
        local_nodes=known.local_nodes if declared.local_nodes is None else declared.local_nodes,
    )


async def _settings(kube: Kube) -> tuple[Settings, bool]:
    """The cluster's settings, and whether they could be read; else those of the environment."""
    own = Settings()
    try:
        found = await kube.get(CONFIG_MAPS, CONFIG_MAP, own.text("NAMESPACE"))
    except ApiError as err:
        if err.status not in (403, 404):
            raise
        why = f"the ConfigMap {own.text('NAMESPACE')}/{CONFIG_MAP} cannot be read ({err.reason})"
        click.echo(f"Note: {why}; settings are taken from the environment here.", err=True)
        return own, False
    return Settings(found.get("data") or {}), True


def assumed_images(settings: Settings) -> PriceSettings:
    """Images that are not known stand for themselves: whether there are any is the cluster's matter."""
    known = price_settings(settings)
    engines = registry(known.runtimes).runtimes.values()
    names = [f"{e.traits.name}/{hardware}" for e in engines for hardware in e.traits.hardware]
    return replace(known, images={name: f"not-known/{name}" for name in names} | dict(known.images))


def key_of(name: str, namespace: str, state: State) -> str:
    """The key of the Model that a command names. Raises CommandError where there is none."""
    key = name if "/" in name else f"{namespace}/{name}"
    keys = [model.key for model in state.models]
    if key in keys:
        return key
    raise CommandError(
        f"planning model {key}",
        wrong=f"it is not declared; there are: {_some(keys)}",
        todo="name one of these, -n for another namespace, or a manifest with -f",
    )


def _some(keys: Iterable[str]) -> str:
    ordered = sorted(keys)
    more = f" and {len(ordered) - 8} more" if len(ordered) > 8 else ""
    return (", ".join(ordered[:8]) or "none") + more
