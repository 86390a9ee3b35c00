"""Whose weights stay in a node's memory? Copies to make and to drop, decided after every wish is."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from berth.planner.actions import Plan, Refuse
from berth.planner.arithmetic import host_room
from berth.planner.book import is_listed
from berth.planner.state import Model, Node, Runner, Stage, State
from berth.reasons import Reason
from berth.units import Bytes, show_bytes

Loads = Mapping[tuple[str, str], float]
"""When a file was last loaded on a node, by node and sha256."""

Claims = Callable[[int], Bytes]
"""What the pod of a copy of so many bytes asks for; given, because the planner knows no pods."""

_LOADING = frozenset({Stage.RESERVED, Stage.STARTING})


@dataclass(frozen=True)
class MakeCopy:
    """Hold this file on this node."""

    node: str
    sha256: str
    size: Bytes


@dataclass(frozen=True)
class DropCopy:
    """Let this copy go."""

    node: str
    sha256: str


@dataclass(frozen=True)
class CopyPlan:
    """What to do, and what to warn of: by Residency, (reason, sentence)."""

    make: tuple[MakeCopy, ...] = ()
    drop: tuple[DropCopy, ...] = ()
    warnings: Mapping[str, tuple[Reason, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class _File:
    sha256: str
    size: Bytes
    pinned: bool
    loaded: float


def plan_copies(state: State, plan: Plan, loads: Loads, claim: Claims) -> CopyPlan:
    """Copies on every node.

    1. Files of Models with ``residency: Host`` first, whatever was loaded when; then those loaded
       here, the latest first, as far as the budget goes. Beyond it nobody else's copy stays.
    2. A copy is made only of a file that is on the node, while nothing loads there, when nobody maps
       the file on his own account, and where the host has the room beside every claim: a budget
       above that is cut, never an OOM.
    3. A copy that a runner's claim rests on stays. Of the rest those not wanted go, and on a held
       node all.
    4. Where a model finds no host memory, copies that are not pinned make room, the one loaded
       longest ago first.
    """
    make: list[MakeCopy] = []
    drop: list[DropCopy] = []
    warnings: dict[str, tuple[Reason, str]] = {}
    fleet = _Fleet.of(state, loads)
    short = _short_of_memory(plan)
    for node in state.nodes:
        if not node.copies and not node.policy.host_weights and not fleet.pinned:
            continue
        desk = _Desk(fleet, node, loads, claim, short.get(node.name, 0))
        make += desk.to_make()
        drop += desk.to_drop()
        warning = desk.warning()
        if warning is not None:
            warnings.setdefault(node.policy.name, warning)
    return CopyPlan(tuple(make), tuple(drop), warnings)


def carried(node: Node, model: Model, file_pages: Bytes) -> Bytes:
    """What of a claim's file pages copies on the node hold already: all of them, or nothing."""
    held = {copy.sha256 for copy in node.copies if copy.ready}
    whole = bool(model.files) and all(sha256 in held for sha256, _ in model.files)
    return file_pages if whole else Bytes(0)


@dataclass(frozen=True)
class _Fleet:
    """What is looked up for every node, put in order once."""

    models: Mapping[str, Model]
    files: Mapping[str, tuple[tuple[str, Bytes], ...]]
    """By model: only files that are known by their digest lie in the store under a name."""
    pinned: tuple[str, ...]
    """Models that keep a copy wherever they may run."""
    runners: Mapping[str, list[Runner]]
    """By node."""
    loaded: Mapping[str, set[str]]
    """Digests of files that were loaded there, by node."""
    owners: Mapping[str, list[str]]
    """Models by the digest of each of their files."""

    @classmethod
    def of(cls, state: State, loads: Loads) -> Self:
        files = {m.key: tuple((sha, size) for sha, size in m.files if sha) for m in state.models}
        owners: dict[str, list[str]] = defaultdict(list)
        for key, own in files.items():
            for sha256, _ in own:
                owners[sha256].append(key)
        runners: dict[str, list[Runner]] = defaultdict(list)
        for runner in state.runners:
            runners[runner.node].append(runner)
        loaded: dict[str, set[str]] = defaultdict(set)
        for node, sha256 in loads:
            loaded[node].add(sha256)
        pinned = tuple(model.key for model in state.models if model.keeps_host)
        return cls({m.key: m for m in state.models}, files, pinned, runners, loaded, owners)

    def may_have_copies(self, node: str) -> list[Model]:
        """Models that a copy on the node may be of, each once."""
        keys = dict.fromkeys(self.pinned)
        for sha256 in sorted(self.loaded.get(node, ())):
            keys |= dict.fromkeys(self.owners.get(sha256, ()))
        return [self.models[key] for key in keys]


class _Desk:
    """The copies of one node in one pass."""

    def __init__(self, fleet: _Fleet, node: Node, loads: Loads, claim: Claims, short: int) -> None:
        self._fleet, self._node, self._loads, self._claim = fleet, node, loads, claim
        self._short = short
        self._runners = fleet.runners.get(node.name, [])
        self._wanted = self._choose()

    def to_make(self) -> list[MakeCopy]:
        """One at a time: each reads the disk."""
        node = self._node
        here = {copy.sha256 for copy in node.copies}
        pending = any(not copy.ready for copy in node.copies)
        if self._is_closed() or pending or any(r.stage in _LOADING for r in self._runners):
            return []
        mapped = self._mapped()
        room = int(
            host_room(node, [r for r in self._runners if r.stage is not Stage.PREPARING]).free
        )
        room = min(
            room, node.allocatable - node.requested - sum(r.claim.host for r in self._runners)
        )
        for file in self._wanted:
            if file.sha256 in here or file.sha256 in mapped or file.sha256 not in node.files:
                continue
            if self._claim(file.size) <= room:
                return [MakeCopy(node.name, file.sha256, file.size)]
        return []

    def to_drop(self) -> list[DropCopy]:
        node, wanted = self._node, {file.sha256: file for file in self._wanted}
        relied = self._relied_on()
        gone = [copy for copy in node.copies if copy.sha256 not in relied and self._is_held()]
        gone += [
            copy
            for copy in node.copies
            if copy.sha256 not in wanted and copy.sha256 not in relied and copy not in gone
        ]
        short = self._short - sum(copy.size for copy in gone)
        for copy in sorted(node.copies, key=lambda c: self._loads.get((node.name, c.sha256), 0.0)):
            file = wanted.get(copy.sha256)
            if short <= 0:
                break
            if copy in gone or copy.sha256 in relied or file is None or file.pinned:
                continue
            gone.append(copy)
            short -= copy.size
        return [DropCopy(node.name, copy.sha256) for copy in gone]

    def warning(self) -> tuple[Reason, str] | None:
        """Pinned copies beyond the budget, or a budget beyond what the host can give."""
        node, budget = self._node, self._node.policy.host_weights
        pinned = sum(file.size for file in self._known() if file.pinned)
        if pinned > budget and pinned:
            return (
                Reason.COPIES_OVERCOMMITTED,
                f"{node.name}: copies that must stay take {show_bytes(Bytes(pinned))}, the budget is "
                f"{show_bytes(budget)}; no other model's copy stays",
            )
        most = Bytes(max(0, node.capacity - node.policy.host_reserve - node.policy.claims))
        if budget > most:
            return (
                Reason.BUDGET_CUT,
                f"{node.name}: the budget for host copies is cut to {show_bytes(most)}, what the host "
                "has beside its reserve",
            )
        return None

    # -- what is wanted --------------------------------------------------------------------------

    def _choose(self) -> list[_File]:
        budget = self._node.policy.host_weights
        known = self._known()
        chosen = [file for file in known if file.pinned]
        left = budget - sum(file.size for file in chosen)
        for file in sorted((f for f in known if not f.pinned), key=lambda f: (-f.loaded, f.sha256)):
            if file.size > left:
                break  # what was loaded longer ago does not overtake it
            chosen.append(file)
            left -= file.size
        return chosen

    def _known(self) -> list[_File]:
        """Files that may have a copy here: pinned ones, and those that were loaded here."""
        found: dict[str, _File] = {}
        for model in self._fleet.may_have_copies(self._node.name):
            for sha256, size in self._fleet.files[model.key]:
                loaded = self._loads.get((self._node.name, sha256), 0.0)
                pinned = model.keeps_host and self._may_run(model)
                if not pinned and (not loaded or self._is_loaded_and_dropped(model)):
                    continue
                before = found.get(sha256)
                pinned = pinned or (before is not None and before.pinned)
                found[sha256] = _File(sha256, size, pinned, loaded)
        return sorted(found.values(), key=lambda file: file.sha256)

    def _may_run(self, model: Model) -> bool:
        labels = self._node.labels
        listed = self._node.policy.models
        selected = all(labels.get(key) == value for key, value in model.node_selector.items())
        return selected and (not listed or is_listed(listed, model.key))

    def _is_loaded_and_dropped(self, model: Model) -> bool:
        if not self._node.policy.drop_after_load:
            return False
        return any(
            r.model == model.key and r.stage is Stage.UP and r.claim.devices for r in self._runners
        )

    # -- what stands in the way ------------------------------------------------------------------

    def _mapped(self) -> set[str]:
        """Files that runners map on their own account: their pages cannot be moved."""
        return set(self._shas(filter(self._maps, self._runners))) - self._relied_on()

    def _relied_on(self) -> set[str]:
        """Files whose copy is part of what a runner was charged: it must outlive the runner."""
        held = {copy.sha256 for copy in self._node.copies}
        return held & set(self._shas(filter(self._maps, self._runners)))

    def _maps(self, runner: Runner) -> bool:
        """Whether a runner there reads pages of the file again and again."""
        has_gpu = bool(runner.claim.devices)
        model = self._fleet.models.get(runner.model)
        needs = model.needs if model is not None else ()
        return any(need.file_pages and bool(need.gpus) == has_gpu for need in needs)

    def _shas(self, runners: Iterable[Runner]) -> Iterable[str]:
        for runner in runners:
            yield from (sha256 for sha256, _ in self._fleet.files.get(runner.model, ()))

    def _is_held(self) -> bool:
        return bool(self._node.held_by)

    def _is_closed(self) -> bool:
        node = self._node
        return self._is_held() or not node.ready or not node.schedulable or not node.agent_fresh


def _short_of_memory(plan: Plan) -> dict[str, int]:
    """By node: the least that a refused model lacks of host memory there."""
    found: dict[str, int] = {}
    for action in plan.actions:
        if not isinstance(action, Refuse):
            continue
        for place in action.places:
            if place.reason is Reason.HOST_MEMORY and place.need > place.have:
                lacks = int(place.need - place.have)
                found[place.node] = min(lacks, found.get(place.node, lacks))
    return found
