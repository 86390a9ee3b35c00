"""Which copies of weights are in host memory, and when was what loaded where?"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from berth.api.meta import moment_of
from berth.controller.views import PodView
from berth.manifests.holder import holder_claim
from berth.planner.state import Copy, Model, Node, Runner, Stage, State

_AGAIN_S = 60.0
"""Between two tries of a copy whose pod has ended by itself."""


@dataclass
class Tally:
    """What became of loads and copies in one pass."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    reloaded: list[str] = field(default_factory=list)
    """Models that read the disk though they had been loaded on that node before."""


@dataclass
class Shelf:
    """What is remembered of copies. A new leader learns the order from the pods that are there."""

    loads: dict[tuple[str, str], float] = field(default_factory=dict)
    """When a file was last loaded on a node, by node and sha256."""
    tally: Tally = field(default_factory=Tally)
    _begun: set[str] | None = None
    """Runners whose load was counted; none yet: what is up was loaded before anybody looked."""
    _failed: dict[tuple[str, str], float] = field(default_factory=dict)

    def adopt(self, pods: Iterable[PodView]) -> None:
        """A copy that nobody remembers was wanted when it was made."""
        for pod in pods:
            if pod.holds is not None:
                made = moment_of(pod.created) if pod.created else 0.0
                self.loads.setdefault((pod.node, pod.holds.sha256), made)

    def saw(self, state: State) -> None:
        """Count each load once, when it begins: was everything it reads in memory?"""
        models = {model.key: model for model in state.models}
        ready = {node.name: _ready(node) for node in state.nodes}
        budgets = {node.name for node in state.nodes if node.policy.host_weights}
        self.tally = Tally()
        begun = set()
        for runner in state.runners:
            model = models.get(runner.model)
            if model is None or runner.stage not in (Stage.STARTING, Stage.UP):
                continue
            begun.add(runner.uid)
            shas = [sha256 for sha256, _ in model.files if sha256]
            if shas and self._is_new(runner):
                held = ready.get(runner.node, frozenset())
                self._count(model, runner, shas, held, runner.node in budgets)
            for sha256 in shas:
                self._loaded(runner, sha256)
        self._begun = begun

    def _is_new(self, runner: Runner) -> bool:
        """Whether its load is not counted yet; a quick one is up before any pass sees it start."""
        if self._begun is None:
            return runner.stage is Stage.STARTING
        return runner.uid not in self._begun

    def _count(
        self, model: Model, runner: Runner, shas: list[str], held: frozenset[str], counts: bool
    ) -> None:
        if held.issuperset(shas):
            self.tally.hits += 1
        elif counts or model.keeps_host:
            self.tally.misses += 1
            if all((runner.node, sha256) in self.loads for sha256 in shas):
                self.tally.reloaded.append(model.key)

    def _loaded(self, runner: Runner, sha256: str) -> None:
        if runner.up_since is not None:
            key = (runner.node, sha256)
            self.loads[key] = max(self.loads.get(key, 0.0), runner.up_since)

    def failed(self, node: str, sha256: str, now: float) -> None:
        self._failed[node, sha256] = now

    def may_try(self, node: str, sha256: str, now: float) -> bool:
        return now - self._failed.get((node, sha256), float("-inf")) >= _AGAIN_S


def with_copies(nodes: Iterable[Node], pods: Iterable[PodView]) -> tuple[Node, ...]:
    """The nodes with the copies that pods hold there; one that is ending still holds its bytes."""
    by_node: dict[str, list[Copy]] = {}
    for pod in pods:
        if pod.holds is None or pod.finished or not pod.node:
            continue
        ready = pod.ready and not pod.deleting
        copy = Copy(pod.holds.sha256, pod.holds.size, holder_claim(pod.holds.size), ready)
        by_node.setdefault(pod.node, []).append(copy)
    return tuple(
        replace(node, copies=tuple(sorted(by_node[node.name], key=lambda c: c.sha256)))
        if node.name in by_node
        else node
        for node in nodes
    )


def _ready(node: Node) -> frozenset[str]:
    return frozenset(copy.sha256 for copy in node.copies if copy.ready)
