"""What does the cluster look like now? Every object that a pass reads, as last seen or written."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from berth.api.demand import Demand
from berth.api.hold import Hold
from berth.api.inventory import NodeInventory
from berth.api.meta import Resource
from berth.api.model import Model
from berth.api.profile import Profile
from berth.api.residency import Residency
from berth.api.runner import Runner
from berth.controller.views import NodeView, PodView, node_view, pod_view, version_of
from berth.kube.refs import NODES, PODS, Ref, ref_of

log = logging.getLogger(__name__)

Object = dict[str, Any]
T = TypeVar("T")
_TOMBSTONE_S = 900.0
"""How long a deleted object's uid is remembered: longer than any watch event can be late."""


@dataclass(frozen=True)
class Entry(Generic[T]):
    uid: str
    version: int
    value: T


@dataclass(frozen=True)
class Broken:
    """An object that does not parse: a newer release wrote it, or its schema was loosened."""

    namespace: str
    name: str
    uid: str
    generation: int
    message: str


class Table(Generic[T]):
    """One kind. The newest resource version wins, whoever brought it: watch, list or own write.

    ``changed`` is called when the ``core`` of a value differs from the one before.
    """

    def __init__(
        self,
        ref: Ref,
        parse: Callable[[Object], T],
        changed: Callable[[], None] = lambda: None,
        *,
        core: Callable[[T], object] = lambda value: value,
    ) -> None:
        self.ref = ref
        self._parse = parse
        self._changed = changed
        self._core = core
        self._entries: dict[str, Entry[T]] = {}
        self._dead: dict[str, float] = {}
        self.broken: dict[str, Broken] = {}
        self.listed = False

    def __iter__(self) -> Iterator[T]:
        return (entry.value for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> T | None:
        entry = self._entries.get(key)
        return entry.value if entry else None

    def items(self) -> Iterable[tuple[str, T]]:
        return ((key, entry.value) for key, entry in self._entries.items())

    def put(self, obj: Object) -> None:
        """An object as the API server sent it, by watch or as the answer to a write."""
        if self._take(obj):
            self._changed()

    def wrote(self, obj: Object) -> None:
        """The answer to an own write that tells a pass nothing new."""
        self._take(obj)

    def _take(self, obj: Object) -> bool:
        """Keep the object if it is newer; whether a pass could read the difference."""
        key, uid, version = _key(obj), str(obj["metadata"].get("uid") or ""), version_of(obj)
        if uid in self._dead:
            return False
        before = self._entries.get(key)
        if before is not None and version and version <= before.version:
            return False
        try:
            value = self._parse(obj)
        except (ValidationError, ValueError, KeyError, TypeError) as err:
            self._break(key, obj, str(err))
            return True
        self.broken.pop(key, None)
        if before is not None and before.value == value:
            # The very same object: what was made from it need not be made again.
            self._entries[key] = Entry(uid, version, before.value)
            return False
        self._entries[key] = Entry(uid, version, value)
        return before is None or self._core(before.value) != self._core(value)

    def drop(self, key: str, uid: str = "") -> None:
        """The object is gone, by watch or by our own delete. A successor of its name stays."""
        if uid:
            self._bury(uid)
        entry = self._entries.get(key)
        if entry is not None and uid and entry.uid != uid:
            return
        self.broken.pop(key, None)
        if self._entries.pop(key, None) is not None:
            self._changed()

    def amend(self, key: str, uid: str, change: Callable[[T], T]) -> None:
        """What is known to have changed although no answer of the API server showed it."""
        entry = self._entries.get(key)
        if entry is not None and entry.uid == uid:
            self._entries[key] = Entry(uid, entry.version, change(entry.value))
            self._changed()

    def replace(self, objects: list[Object], version: str) -> None:
        """A whole list: what is not in it and not newer than it is gone.

        A watch that had to list anew does not tell what was deleted meanwhile; this does.
        """
        at = int(version) if version.isdigit() else 0
        present = {_key(obj) for obj in objects}
        for obj in objects:
            self.put(obj)
        for key, entry in list(self._entries.items()):
            if key not in present and entry.version <= at:
                self.drop(key, entry.uid)
        self.broken = {key: value for key, value in self.broken.items() if key in present}
        self.listed = True

    def _break(self, key: str, obj: Object, message: str) -> None:
        meta = obj["metadata"]
        told = self.broken.get(key)
        self.broken[key] = Broken(
            namespace=meta.get("namespace") or "",
            name=meta["name"],
            uid=meta.get("uid") or "",
            generation=int(meta.get("generation") or 0),
            message=message[:900],
        )
        if told != self.broken[key]:
            log.warning("%s %s does not parse and is left out: %s", self.ref.kind, key, message)
        self._entries.pop(key, None)

    def _bury(self, uid: str) -> None:
        now = time.monotonic()
        self._dead[uid] = now
        if len(self._dead) > 1024:
            self._dead = {u: at for u, at in self._dead.items() if now - at < _TOMBSTONE_S}


def _key(obj: Object) -> str:
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


R = TypeVar("R", bound=Resource)


def _typed(cls: type[R]) -> Callable[[Object], R]:
    def parse(obj: Object) -> R:
        value = cls.model_validate(obj)
        # Two values that differ in nothing else are the same to a pass.
        value.metadata.resource_version = ""
        return value

    return parse


def _without_counters(runner: Runner) -> Runner:
    """A Runner without the figures that only people read: they rise with every token."""
    agent = runner.status.agent
    if agent is None or agent.health is None:
        return runner
    health = agent.health.model_copy(
        update={"served": 0, "tokens": 0, "prompt_tokens": 0, "since": ""}
    )
    agent = agent.model_copy(update={"health": health})
    status = runner.status.model_copy(update={"agent": agent})
    return runner.model_copy(update={"status": status})


class Store:
    """All kinds. ``changed`` is called for every difference that a pass could read."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self.models = Table(ref_of(Model), _typed(Model), changed)
        self.profiles = Table(ref_of(Profile), _typed(Profile), changed)
        self.residencies = Table(ref_of(Residency), _typed(Residency), changed)
        self.holds = Table(ref_of(Hold), _typed(Hold), changed)
        self.runners = Table(ref_of(Runner), _typed(Runner), changed, core=_without_counters)
        self.demands = Table(ref_of(Demand), _typed(Demand), changed)
        self.inventories = Table(ref_of(NodeInventory), _typed(NodeInventory), changed)
        self.pods: Table[PodView] = Table(PODS, pod_view, changed)
        self.nodes: Table[NodeView] = Table(NODES, node_view, changed)

    def tables(self) -> tuple[Table[Any], ...]:
        return (
            self.models,
            self.profiles,
            self.residencies,
            self.holds,
            self.runners,
            self.demands,
            self.inventories,
            self.pods,
            self.nodes,
        )

    @property
    def listed(self) -> bool:
        """True once every kind was listed: before that, an absence means nothing."""
        return all(table.listed for table in self.tables())
