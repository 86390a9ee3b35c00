"""What would the controller see now, for somebody who only looks? Lists in, one State out; no write.

What the controller remembers between passes is not on the API server: when it saw a beat or a stage
change, how loads failed on which node, what earlier runners took. An onlooker takes stamps as they
stand and the watches as healthy; everything else is the controller's own code.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from berth.api.meta import ANNOTATION_LOAD, Condition, Resource, moment_or_none
from berth.api.model import FactsStatus, Model
from berth.api.profile import Profile
from berth.api.residency import Residency
from berth.api.runner import Mount
from berth.controller.chain import user_layers
from berth.controller.configured import frame_of
from berth.controller.history import History
from berth.controller.observe import Remembered, observe
from berth.controller.parts import host_path_of, inspected, mounted_files
from berth.controller.priced import Priced
from berth.controller.pricing import Files, PriceSettings, Unpriceable, price
from berth.controller.resolve import resolve, source_hash
from berth.controller.store import Store, Table
from berth.controller.volumes import Volume, holders, nodes_seeing, read_volume
from berth.kube.client import ApiError, Kube
from berth.planner.state import State
from berth.reasons import ConditionType, Reason
from berth.settings import Settings

Read = Mapping[str, FactsStatus | Unpriceable]
"""What the caller has read of sources, by ``source_hash``."""


async def read_store(kube: Kube) -> Store:
    """Every object that a pass reads, with the rights of whoever asks. Raises ApiError."""
    store = Store()
    for table in store.tables():
        objects, version = await kube.list_all(table.ref)
        table.replace(objects, version)
    return store


async def read_volumes(kube: Kube, claims: Iterable[str]) -> dict[str, Volume]:
    """What is behind claims, by ``namespace/name``; who may not see one takes it for anywhere's."""
    found = {}
    for key in sorted(set(claims)):
        namespace, _, name = key.partition("/")
        try:
            volume = await read_volume(kube, namespace, name)
        except ApiError:
            continue
        if volume is not None:
            found[key] = volume
    return found


def claim_of(model: Model) -> str:
    """``namespace/name`` of the claim that its files are on; empty for any other source."""
    path = model.spec.source.path
    name = path.persistent_volume_claim if path is not None else None
    return f"{model.metadata.namespace}/{name}" if name else ""


def declare(store: Store, found: Resource) -> None:
    """Put a Model, Profile or Residency into the store as if it had just been applied.

    What the API server keeps of an object that is there (uid, status) stays. So does its
    ``minReplicas`` where the new one leaves it out: an autoscaler may own it.
    """
    table: Table[Resource] = _table_of(store, found)
    before = table.get(found.key)
    body = found.wire()
    if before is None:
        meta = {"uid": f"new/{found.key}", "generation": 1}
        table.put(body | {"metadata": body["metadata"] | meta})
        return
    if isinstance(found, Model) and "min_replicas" not in found.spec.model_fields_set:
        body["spec"]["minReplicas"] = _as_model(before).spec.min_replicas
    old = before.wire()
    if old["spec"] == body["spec"]:
        return
    meta = old["metadata"] | {"generation": before.metadata.generation + 1, "resourceVersion": ""}
    # Without its status: the store takes it as written just now.
    table.put(body | {"metadata": meta, "status": old.get("status") or {}})


def _as_model(found: Resource) -> Model:
    assert isinstance(found, Model)
    return found


def _table_of(store: Store, found: Resource) -> Table[Resource]:
    tables: Mapping[type[Resource], Table[Resource]] = {
        Model: store.models,  # type: ignore[dict-item] # a table of one kind is read as one of any
        Profile: store.profiles,  # type: ignore[dict-item]
        Residency: store.residencies,  # type: ignore[dict-item]
    }
    return tables[type(found)]


@dataclass(frozen=True)
class Sight:
    """What an onlooker sees: the snapshot, and the prices that went into it."""

    state: State
    prices: Mapping[str, Priced]


@dataclass(frozen=True)
class Terms:
    """What looking goes by. ``subjects``: keys of the Models that are asked about; None: all of them.

    Of the others only those are priced that somebody wants or that are loaded: the rest decides
    nothing, and a price takes some hundredths of a second.
    """

    settings: Settings
    images: PriceSettings
    now: float
    """Seconds since the epoch."""
    subjects: frozenset[str] | None = None
    volumes: Mapping[str, Volume] = field(default_factory=dict)
    """What is behind the claims of Models, by ``namespace/name``."""


def look(store: Store, terms: Terms, read: Read) -> Sight:
    """The snapshot as it would be planned on."""
    settings, now = terms.settings, terms.now
    keys = None if terms.subjects is None else terms.subjects | wanted(store)
    prices = prices_of(store, terms, read, keys)
    epochs = [r.spec.epoch for r in store.runners] + [i.status.epoch for i in store.inventories]
    frame = frame_of(
        settings,
        epoch=max(epochs, default=0),
        healthy_since=0.0,
    )
    remembered = Remembered(History())
    for key, demand in store.demands.items():
        for entry in demand.status.waiting:
            began = min(moment_or_none(entry.since) or now, now)
            name = (key, entry.gateway)
            remembered.sightings.put("waiting-since", name, entry.since, began)
    return Sight(observe(store, remembered, replace(frame, prices=prices), now).state, prices)


def wanted(store: Store) -> frozenset[str]:
    """Keys of the Models whose needs decide something: loaded, waited for, or to be loaded."""
    if any(residency.spec.autoload for residency in store.residencies):
        return frozenset(key for key, _ in store.models.items())
    found = {r.model_key for r in store.runners}
    found |= {key for key, demand in store.demands.items() if demand.status.waiting}
    found |= {key for key, model in store.models.items() if _is_to_be_loaded(model)}
    return frozenset(found)


def _is_to_be_loaded(model: Model) -> bool:
    asked = model.metadata.annotations.get(ANNOTATION_LOAD)
    by_hand = asked is not None and asked != model.status.load_handled
    return by_hand or model.spec.min_replicas > 0 or model.spec.residency == "Pinned"


def prices_of(
    store: Store, terms: Terms, read: Read, keys: frozenset[str] | None = None
) -> dict[str, Priced]:
    """The price of each Model by key, blocked ones with the reason that is known of them."""
    return {
        key: _price(model, store, terms, read)
        for key, model in store.models.items()
        if keys is None or key in keys
    }


def _price(model: Model, store: Store, terms: Terms, read: Read) -> Priced:
    name = model.spec.profile or ""
    try:
        profile = profile_of(model, store)
        fields = resolve(model, profile)
        files = files_of(model, store, read)
        volume = terms.volumes.get(claim_of(model))
        if volume is not None:
            files = replace(files, local_nodes=_seeing(volume, model, store))
        layers = user_layers(model, profile)
        return price(model, fields, files, terms.images, profile=name, layers=layers)
    except Unpriceable as err:
        return Priced(
            source_hash=source_hash(model),
            profile=name,
            generation=model.metadata.generation,
            blocked=err.reason,
            blocked_word=err.word,
            blocked_message=err.message,
        )


def _seeing(volume: Volume, model: Model, store: Store) -> frozenset[str] | None:
    namespace, _, name = claim_of(model).partition("/")
    return nodes_seeing(volume, store.nodes, holders(store.pods, namespace, name))


def profile_of(model: Model, store: Store) -> Profile | None:
    """The Profile that a Model names. Raises Unpriceable where there is none of that name."""
    name, namespace = model.spec.profile, model.metadata.namespace
    if not name:
        return None
    profile = store.profiles.get(f"{namespace}/{name}")
    if profile is None:
        text = f"there is no profile {name} in namespace {namespace}"
        raise Unpriceable(Reason.PROFILE_NOT_FOUND, text)
    return profile


def files_of(model: Model, store: Store, read: Read) -> Files:
    """The files of a Model as far as anybody has read them. Raises Unpriceable.

    1. What the caller has read.
    2. A host path: what the nodes say.
    3. What the controller has read and stored, of this Model or of another with the same source.
    4. Nothing: in the words of the Model's own conditions.
    """
    source, path = source_hash(model), model.spec.source.path
    found = read.get(source)
    if isinstance(found, Unpriceable):
        raise found
    nodes: frozenset[str] | None = None
    if found is None and host_path_of(model):
        seen = inspected(host_path_of(model), list(store.inventories))
        found, nodes = seen.facts, seen.nodes
    if found is None:
        found = stored_facts(source, store.models)
    if found is None:
        raise _told(model)
    if path is None:
        return Files(found, tuple(found.files))
    mount = Mount(host_path=path.host_path, persistent_volume_claim=path.persistent_volume_claim)
    return Files(found, tuple(mounted_files(model, found)), mount=mount, local_nodes=nodes)


def stored_facts(source: str, models: Iterable[Model]) -> FactsStatus | None:
    """The facts of a source that the controller has stored on any Model."""
    for model in models:
        facts = model.status.facts
        if facts is not None and facts.source_hash == source and facts.record:
            return facts
    return None


def _told(model: Model) -> Unpriceable:
    """Why the header is not known, as the controller said; else that it is still being read."""
    for kind in (ConditionType.ACCEPTED, ConditionType.HEADER_READ):
        said = next((c for c in model.status.conditions if c.type == kind), None)
        if said is not None and said.status != "True":
            return Unpriceable(_reason(said), said.message, word=said.reason)
    return Unpriceable(Reason.READING_HEADER, "its header is being read")


def _reason(said: Condition) -> Reason:
    try:
        return Reason(said.reason)
    except ValueError:
        return Reason.NEEDS_UNKNOWN
