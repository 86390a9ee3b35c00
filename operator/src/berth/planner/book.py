"""What is free, coming and held at this moment of the pass? The ledger that one pass works on.

The only mutable thing in the planner: it starts as the snapshot says and follows every action
that the pass decides, so that two decisions of one pass never count the same bytes twice.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from berth.planner.actions import (
    Action,
    Drain,
    Prepare,
    Refuse,
    Reserve,
    Seat,
    Spare,
    Stop,
    Wait,
    seats_of,
)
from berth.planner.amounts import (
    Amounts,
    NodeBook,
    add,
    amounts,
    missing_bytes,
)
from berth.planner.holdings import held_by, open_book
from berth.planner.state import Model, Node, Runner, Stage, State
from berth.reasons import Reason

AUTOLOAD_FIT = "Fit"
"""The entry of ``autoload`` that stands for every model that fits."""

_ENDING = frozenset({Stage.STOPPING, Stage.FAILED})
_LOADED = frozenset({Stage.RESERVED, Stage.STARTING, Stage.UP})
_WITH_POD = frozenset({Stage.STARTING, Stage.UP, Stage.STOPPING})
LOADING = frozenset({Stage.RESERVED, Stage.STARTING})


@dataclass
class Book:
    """The pass's working ledger over the whole cluster."""

    state: State
    models: dict[str, Model]
    by_model: dict[str, list[Runner]]
    by_node: dict[str, list[Runner]]
    nodes: dict[str, Node]
    owners: dict[str, Runner] = field(default_factory=dict)
    """By uid of a member of a group: the runner that it is a part of."""
    parts: dict[str, list[Runner]] = field(default_factory=dict)
    """By uid of a runner: the other members of its group."""
    actions: list[Action] = field(default_factory=list)
    outcome: dict[str, Refuse | Wait] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    drained: set[str] = field(default_factory=set)
    spared: set[str] = field(default_factory=set)
    placed: dict[str, list[Prepare | Reserve]] = field(default_factory=dict)
    spread: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By model that is to have a runner on every device: those devices, as targets."""
    autoloading: set[str] | None = None
    """What ``turns`` remembers: policies on whose nodes a model is being loaded by ``autoload``."""
    mains: dict[str, tuple[int, str] | None] = field(default_factory=dict)
    """What ``turns`` remembers, by policy: who is to be up there before any later one is autoloaded."""
    rolling: set[str] = field(default_factory=set)
    """Nodes on which a runner is being replaced: one at a time on each."""
    rolling_profiles: set[str] = field(default_factory=set)
    """Profiles of which a model's settings are being changed: one model at a time of each."""
    over: dict[str, str] = field(default_factory=dict)
    """Nodes on which more is held than there is, and a sentence about it."""
    wakes: list[float] = field(default_factory=list)
    started: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    """Models whose planning raised: nothing more is decided for them in this pass."""
    kept_for: dict[tuple[str, str], str] = field(default_factory=dict)
    """Places (node and device, or HOST) that nobody else gets in this pass, and whose they are."""
    eligible: dict[object, Any] = field(default_factory=dict)
    """What ``search`` remembers of the nodes."""
    lists_models: bool | None = None
    ranked: dict[str, dict[object, Any]] = field(default_factory=dict)
    """What ``eviction`` remembers of the runners on each node, until one of them changes."""
    cheapest: dict[object, Any] = field(default_factory=dict)
    """What ``eviction`` remembers of all nodes; of the changed ones it is out of date."""
    changed: set[str] = field(default_factory=set)
    groups_ranked: dict[object, Any] = field(default_factory=dict)
    _index: list[tuple[int, str]] | None = None
    _unified: list[str] | None = None
    _takes: dict[str, Amounts] = field(default_factory=dict)
    _books: dict[str, NodeBook] = field(default_factory=dict)
    _groups: dict[str, int] | None = None
    _autoload: frozenset[str] | None = None
    _positions: dict[str, int] | None = None
    _newcomers: dict[str, list[Runner]] | None = None
    _reserved_on: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, state: State) -> "Book":
        """The book as the snapshot says."""
        by_model: dict[str, list[Runner]] = defaultdict(list)
        by_node: dict[str, list[Runner]] = defaultdict(list)
        parts: dict[str, list[Runner]] = defaultdict(list)
        for runner in sorted(state.runners, key=lambda entry: entry.uid):
            by_node[runner.node].append(runner)
            (parts[runner.part_of] if runner.part_of else by_model[runner.model]).append(runner)
        heads = {runner.uid: runner for runner in state.runners if runner.uid in parts}
        return cls(
            state=state,
            models={model.key: model for model in state.models},
            by_model=dict(by_model),
            by_node=dict(by_node),
            nodes={node.name: node for node in state.nodes},
            owners={r.uid: heads[uid] for uid in heads for r in parts[uid]},
            parts=dict(parts),
        )

    def wake(self, at: float | None) -> None:
        """Time alone changes the plan at ``at``."""
        if at is not None and at > self.state.now:
            self.wakes.append(at)

    # Runners.

    def owner(self, runner: Runner) -> Runner:
        """The runner that is decided on: itself, or the head of its group."""
        return self.owners.get(runner.uid, runner)

    def whole(self, runner: Runner) -> list[Runner]:
        """The runner with the other members of its group."""
        return [runner, *self.parts.get(runner.uid, ())]

    def is_leaving(self, runner: Runner) -> bool:
        """Whether its bytes are coming: draining, stopping or ended, by the snapshot or this pass."""
        if runner.part_of:
            head = self.owners.get(runner.uid)
            return head is None or self.is_leaving(head)
        if runner.uid in self.stopped or runner.uid in self.drained:
            return True
        if runner.stage in _ENDING or runner.pod_deleting:
            return True
        return runner.drain is not None and runner.uid not in self.spared

    def is_lost(self, runner: Runner) -> bool:
        """Whether a node of it is gone, or has not been ready for ``lost_after_s``."""
        return any(self._is_away(member) for member in self.whole(runner))

    def _is_away(self, runner: Runner) -> bool:
        node = self.nodes.get(runner.node)
        if runner.stage is Stage.LOST or node is None:
            return True
        since = node.not_ready_since
        if node.ready or since is None:
            return False
        return self.state.now - since >= self.state.lost_after_s

    def is_pinned(self, runner: Runner) -> bool:
        """Whether its Model is pinned."""
        model = self.models.get(runner.model)
        return model is not None and model.pinned

    def live(self, model: str) -> list[Runner]:
        """The model's runners that stay: neither leaving nor lost."""
        return [
            runner
            for runner in self.by_model.get(model, ())
            if not self.is_leaving(runner) and not self.is_lost(runner)
        ]

    def leaving(self, model: str) -> list[Runner]:
        """The model's runners that are on their way out on nodes that still answer."""
        return [
            runner
            for runner in self.by_model.get(model, ())
            if self.is_leaving(runner) and not self.is_lost(runner)
        ]

    def drains_for(self, newcomer: str) -> list[Runner]:
        """The runners that drain to make room for a model, as the snapshot says."""
        if self._newcomers is None:
            found: dict[str, list[Runner]] = defaultdict(list)
            for runner in self.state.runners:
                if runner.drain is not None and runner.drain.reason is Reason.MAKE_ROOM:
                    found[runner.drain.newcomer].append(runner)
            self._newcomers = dict(found)
        return self._newcomers.get(newcomer, [])

    # Amounts.

    def at(self, name: str) -> NodeBook:
        """The node's amounts, worked out when first asked for."""
        book = self._books.get(name)
        if book is None:
            book = self._books[name] = self._open(self.nodes[name])
        return book

    def takes(self, runner: Runner, unified: frozenset[str]) -> Amounts:
        """What a ledger entry holds: the larger of claim and measurement in each place."""
        known = self._takes.get(runner.uid)
        if known is None:
            known = held_by(runner, self.nodes[runner.node], unified)
            self._takes[runner.uid] = known
        return known

    def _open(self, node: Node) -> NodeBook:
        mine = self.by_node.get(node.name, [])
        fetching = sum(self._fetching(runner) for runner in mine)
        book = open_book(node, mine, fetching)
        for runner in mine:
            if runner.stage is not Stage.PREPARING and self.is_leaving(runner):
                add(book.coming, self.takes(runner, book.unified), 1)
        return book

    @property
    def unified_nodes(self) -> list[str]:
        """Nodes on which a device's memory is the host's, by name."""
        if self._unified is None:
            self._unified = [name for name in sorted(self.nodes) if self.at(name).unified]
        return self._unified

    def device_index(self) -> list[tuple[int, str]]:
        """``later`` of every device with memory of its own, and its node; the tightest first."""
        if self._index is None:
            every = ((size, name) for name in self.nodes for size in self.at(name).sizes())
            self._index = sorted(every)
        return self._index

    def _change(self, book: NodeBook, which: Amounts, delta: Mapping[str, int], sign: int) -> None:
        """Change a node's amounts, and its entries in the index with them."""
        before = book.sizes() if self._index is not None else ()
        book.change(which, delta, sign)
        if self._index is None or before == book.sizes():
            return
        for size in before:
            del self._index[bisect_left(self._index, (size, book.node.name))]
        for size in book.sizes():
            insort(self._index, (size, book.node.name))

    def _fetching(self, runner: Runner) -> int:
        model = self.models.get(runner.model)
        if runner.stage is not Stage.PREPARING or runner.fetched or model is None:
            return 0
        return missing_bytes(model, self.nodes[runner.node])

    def group_size(self, policy: str) -> int:
        """How many runners are loaded, and stay, on the nodes that a policy governs."""
        if self._groups is None:
            counts: dict[str, int] = defaultdict(int)
            for runner in self.state.runners:
                node = self.nodes.get(runner.node)
                if runner.part_of:
                    continue
                if node is not None and runner.stage in _LOADED and not self.is_leaving(runner):
                    counts[node.policy.name] += 1
            self._groups = dict(counts)
        return self._groups.get(policy, 0)

    def group_pods(self, policy: str) -> int:
        """How many pods of runners exist, leaving ones included, or start in this pass, in a group."""
        return sum(
            1
            for runner in self.state.runners
            if runner.node in self.nodes
            and not runner.part_of
            and self.nodes[runner.node].policy.name == policy
            and (runner.pod_exists or runner.stage in _WITH_POD or runner.uid in self.started)
        )

    def placed_on(self, node: str) -> bool:
        """Whether this pass reserved a place on the node."""
        return node in self._reserved_on

    def autoloads(self, model: Model) -> bool:
        """Whether a policy loads the model at start: by its key or name, or all that fit."""
        return AUTOLOAD_FIT in self.autoload or self.autoload_names(model)

    def autoload_names(self, model: Model) -> bool:
        """Whether a policy's ``autoload`` names the model."""
        return bool(self.autoload) and is_listed(self.autoload, model.key)

    @property
    def autoload(self) -> frozenset[str]:
        """What the policies load at start."""
        if self._autoload is None:
            self._autoload = frozenset(
                name for node in self.state.nodes for name in node.policy.autoload
            )
        return self._autoload

    def load_position(self, model: Model) -> int:
        """Where the model stands in the load orders of the policies; those not named come last."""
        if self._positions is None:
            self._positions = {}
            for node in self.state.nodes:
                for position, name in enumerate(node.policy.load_order):
                    first = min(position, self._positions.get(name, position))
                    self._positions[name] = first
        found = (self._positions.get(name) for name in (model.key, short_name(model.key)))
        return min((position for position in found if position is not None), default=1 << 30)

    # Decisions.

    def decide(self, runner: Runner, action: Drain | Spare | Stop) -> None:
        """Note what happens to a runner and count its bytes accordingly."""
        runner = self.owner(runner)
        before = self.is_leaving(runner)
        if runner.uid in self.spared:
            # Wanted by another after all: the drain goes on under its name instead of being undone.
            self.spared.discard(runner.uid)
            self.actions.remove(Spare(runner.uid))
        if isinstance(action, Spare):
            self.spared.add(runner.uid)
        elif isinstance(action, Drain):
            self.drained.add(runner.uid)
        else:
            self.stopped.add(runner.uid)
        self.actions.append(action)
        self._shift(runner, int(self.is_leaving(runner)) - int(before))

    def _shift(self, runner: Runner, sign: int) -> None:
        if sign == 0:
            return
        for member in self.whole(runner):
            if member.node in self._books:
                book = self._books[member.node]
                self._change(book, book.coming, self.takes(member, book.unified), sign)
        node = self.nodes.get(runner.node)
        self._forget_ranks(runner)
        if node is None:
            return
        if self._groups is not None and runner.stage in _LOADED:
            name = node.policy.name
            self._groups[name] = self._groups.get(name, 0) - sign

    def _forget_ranks(self, runner: Runner) -> None:
        for sibling in self.by_model.get(runner.model, ()):
            for member in self.whole(sibling):
                self.ranked.pop(member.node, None)
                self.changed.add(member.node)
        self.groups_ranked.clear()

    def roll(self, model: Model, runners: Iterable[Runner]) -> None:
        """Note that these runners of a model are being replaced, or replace others."""
        nodes = {runner.node for runner in runners}
        self.rolling |= nodes
        if nodes and model.profile:
            self.rolling_profiles.add(model.profile)

    def place(self, action: Prepare | Reserve) -> None:
        """Note a placement; a reservation is in the ledger from here on."""
        known = self.outcome.get(action.model)
        if isinstance(known, Refuse) and known.final:
            # Another place of the same model was out of the question; this one is not.
            self.actions.remove(known)
            del self.outcome[action.model]
        self.actions.append(action)
        self.placed.setdefault(action.model, []).append(action)
        book = self.at(action.place.node)
        for seat in seats_of(action):
            self._seat(action, seat)
        if isinstance(action, Prepare):
            return
        if self._groups is not None:
            name = book.node.policy.name
            self._groups[name] = self._groups.get(name, 0) + 1

    def _seat(self, action: Prepare | Reserve, seat: Seat) -> None:
        book = self.at(seat.place.node)
        if isinstance(action, Prepare):
            book.disk -= missing_bytes(self.models[action.model], book.node)
            return
        self._reserved_on.add(seat.place.node)
        self._change(book, book.free, amounts(book.node, seat.claim, book.unified), -1)

    def refuse(self, action: Refuse | Wait) -> None:
        """Note why a wanted model is not placed now. Of several wishes of one model the refusal that
        may end by itself is the one that is told."""
        known = self.outcome.get(action.model)
        if isinstance(action, Refuse) and action.final and known is not None:
            return
        if isinstance(known, Refuse):
            self.actions.remove(known)
        self.actions.append(action)
        self.outcome[action.model] = action
        if isinstance(action, Wait):
            self.wake(action.until)


def is_listed(names: Container[str], key: str) -> bool:
    """Whether a policy's list names the model, by its key or without its namespace."""
    return key in names or short_name(key) in names


def short_name(key: str) -> str:
    """The name without its namespace."""
    return key.rpartition("/")[2]
