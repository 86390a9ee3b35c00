"""Which figures does an agent give to Prometheus?"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from berth.agent.live import Sample
from berth.agent.runners import RunnerWork
from berth.api.runner import MemoryUse
from berth.planner.state import HOST


class Metrics:
    """The agent's metrics, in a registry of their own: a test runs many agents in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.admissions = Counter(
            "berth_agent_admissions",
            "Decisions on loads that differ from the one before",
            ["decision", "reason"],
            registry=self.registry,
        )
        self.runner_claimed = Gauge(
            "berth_runner_claimed_bytes",
            "What a runner may hold at its worst",
            ["namespace", "runner", "place"],
            registry=self.registry,
        )
        self.runner_held = Gauge(
            "berth_runner_held_bytes",
            "What a runner holds, as measured; left out where it cannot be",
            ["namespace", "runner", "place"],
            registry=self.registry,
        )
        self.runner_peak = Gauge(
            "berth_runner_peak_bytes",
            "The most that a runner was seen to hold",
            ["namespace", "runner", "place"],
            registry=self.registry,
        )
        self.host_available = Gauge(
            "berth_host_available_bytes", "MemAvailable of the node", registry=self.registry
        )
        self.device_used = Gauge(
            "berth_device_used_bytes",
            "Memory in use on a GPU",
            ["device", "index"],
            registry=self.registry,
        )
        self.guard_kills = Counter(
            "berth_guard_kills", "Loads that the memory guard ended", registry=self.registry
        )

    def show(self, sample: Sample, works: Iterable[RunnerWork]) -> None:
        """Set the gauges; those of runners that have gone are removed."""
        self.host_available.set(sample.memory.available)
        self.device_used.clear()
        for gpu in sample.gpus.gpus:
            if gpu.used is not None:
                self.device_used.labels(device=gpu.uuid, index=str(gpu.index)).set(gpu.used)
        for gauge in (self.runner_claimed, self.runner_held, self.runner_peak):
            gauge.clear()
        for work in works:
            self._show_runner(work)

    def _show_runner(self, work: RunnerWork) -> None:
        meta, claim = work.runner.metadata, work.runner.spec.claim
        memory = work.seen.memory or MemoryUse()
        claimed = {HOST: claim.host} | {part.device: part.memory for part in claim.devices}
        held = {HOST: memory.host} | {use.device: use.used for use in memory.devices}
        peak = {HOST: memory.host_peak} | {use.device: use.peak for use in memory.devices}
        for gauge, figures in (
            (self.runner_claimed, claimed),
            (self.runner_held, held),
            (self.runner_peak, peak),
        ):
            for place, figure in figures.items():
                if figure is not None:
                    labels = {"namespace": meta.namespace, "runner": meta.name, "place": place}
                    gauge.labels(**labels).set(figure)
