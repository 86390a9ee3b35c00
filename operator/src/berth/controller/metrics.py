"""Which figures does the controller offer to Prometheus?"""

from collections import Counter as Counts
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from berth.controller.apply import Applied
from berth.controller.copies import Tally
from berth.controller.outbox import Written
from berth.planner.state import Node, Runner, Stage

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The controller's series; none of them has a label that users can multiply."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._passes = Counter(
            "berth_passes", "Planning passes by outcome", ["outcome"], registry=self.registry
        )
        self._seconds = Histogram(
            "berth_pass_seconds", "Length of a pass", buckets=_BUCKETS, registry=self.registry
        )
        self._runners = Gauge(
            "berth_runners", "Ledger entries by stage", ["stage"], registry=self.registry
        )
        self._placements = Counter("berth_placements", "Places given", registry=self.registry)
        self._stops = Counter("berth_runner_stops", "Runners ended", registry=self.registry)
        self._evictions = Counter(
            "berth_evictions", "Runners ended to make room", registry=self.registry
        )
        self._refusals = Counter(
            "berth_refusals", "Refusals told, by reason", ["reason"], registry=self.registry
        )
        self._writes = Counter("berth_status_writes", "Statuses written", registry=self.registry)
        self._host_hits = Counter(
            "berth_host_copy_hits",
            "Loads whose weights were all in host memory",
            registry=self.registry,
        )
        self._host_misses = Counter(
            "berth_host_copy_misses",
            "Loads that read the disk on a node with a budget for copies",
            registry=self.registry,
        )
        self._host_evictions = Counter(
            "berth_host_copy_evictions", "Copies dropped from host memory", registry=self.registry
        )
        self._host_bytes = Gauge(
            "berth_host_copy_bytes", "Weights held in host memory", registry=self.registry
        )
        self._leader = Gauge("berth_leader", "1 while this process leads", registry=self.registry)
        self._models = Gauge("berth_models", "Models declared", registry=self.registry)

        self._measured = Gauge(
            "berth_measured_share",
            "What runners took as a share of the estimate: lowest and highest over all Models",
            ["place", "bound"],
            registry=self.registry,
        )

    def leads(self, epoch: int) -> None:
        self._leader.set(1 if epoch else 0)

    def passed(self, outcome: str, seconds: float) -> None:
        """One pass ended: ``done``, ``dropped`` or ``failed``."""
        self._passes.labels(outcome).inc()
        self._seconds.observe(seconds)

    def applied(self, done: Applied) -> None:
        self._placements.inc(done.placed)
        self._stops.inc(done.stopped)
        self._evictions.inc(done.evicted)

    def written(self, written: Written) -> None:
        self._writes.inc(written.statuses)
        for refusal in written.refusals:
            self._refusals.labels(str(refusal.reason)).inc()

    def copied(self, tally: Tally, nodes: tuple[Node, ...]) -> None:
        self._host_hits.inc(tally.hits)
        self._host_misses.inc(tally.misses)
        self._host_evictions.inc(tally.evictions)
        ready = (copy.size for node in nodes for copy in node.copies if copy.ready)
        self._host_bytes.set(sum(ready))

    def compared(self, shares: Iterable[tuple[str, float]]) -> None:
        """How far estimates were off: (``host`` or ``device``, measured by estimated)."""
        by_place: dict[str, list[float]] = {}
        for place, share in shares:
            by_place.setdefault(place, []).append(share)
        for place, found in by_place.items():
            self._measured.labels(place, "lowest").set(min(found))
            self._measured.labels(place, "highest").set(max(found))

    def saw(self, runners: tuple[Runner, ...], models: int) -> None:
        counts = Counts(runner.stage for runner in runners)
        for stage in Stage:
            self._runners.labels(str(stage)).set(counts[stage])
        self._models.set(models)
