"""What does Prometheus see? Series per declared Model and one for all that nobody declares."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from berth.gateway.accounting import BUCKETS, Histogram, Ledger
from berth.gateway.body import Store
from berth.gateway.desk import Desk

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS = [*(str(bound) for bound in BUCKETS), "+Inf"]


class GatewayCollector(Collector):
    """Reads the ledger and the desk when asked; nothing is kept twice."""

    def __init__(self, ledger: Ledger, desk: Desk, store: Store) -> None:
        self._ledger = ledger
        self._desk = desk
        self._store = store

    def collect(self) -> Iterator[Metric]:
        yield from self._counters()
        yield from self._gauges()
        yield from self._histograms()

    def _counters(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "berth_gateway_requests",
            "Requests that ended, by HTTP status of the runner or code of our own error.",
            labels=["model", "outcome"],
        )
        tokens = CounterMetricFamily(
            "berth_gateway_tokens", "Tokens by the engine's own word.", labels=["model", "kind"]
        )
        retries = CounterMetricFamily(
            "berth_gateway_retries", "Times a request was put back in line.", labels=["model"]
        )
        for model, account in self._ledger.accounts.items():
            for outcome, count in account.requests.items():
                requests.add_metric([model, outcome], count)
            tokens.add_metric([model, "prompt"], account.prompt_tokens)
            tokens.add_metric([model, "completion"], account.completion_tokens)
            retries.add_metric([model], account.retries)
        yield from (requests, tokens, retries)

    def _gauges(self) -> Iterator[Metric]:
        running = GaugeMetricFamily(
            "berth_gateway_requests_running", "Requests that a runner has.", labels=["model"]
        )
        waiting = GaugeMetricFamily(
            "berth_gateway_requests_waiting", "Requests in line.", labels=["model"]
        )
        for model, line in self._desk.lines.items():
            running.add_metric([model], line.queue.in_flight)
            waiting.add_metric([model], len(line.queue.waiting))
        yield from (running, waiting)
        yield GaugeMetricFamily(
            "berth_gateway_requests_open", "Requests in this gateway.", value=self._ledger.in_flight
        )
        yield GaugeMetricFamily(
            "berth_gateway_body_bytes", "Bytes of bodies in memory.", value=self._store.in_memory
        )

    def _histograms(self) -> Iterator[Metric]:
        queue, first, total = (
            HistogramMetricFamily(f"berth_gateway_{name}_seconds", text, labels=["model"])
            for name, text in (
                ("queue", "From arrival until a runner had the request."),
                ("first_byte", "From arrival to the first byte of the answer."),
                ("request", "From arrival to the end of the answer."),
            )
        )
        for model, account in self._ledger.accounts.items():
            _add(queue, model, account.queue_s)
            _add(first, model, account.first_s)
            _add(total, model, account.total_s)
        yield from (queue, first, total)


def _add(family: HistogramMetricFamily, model: str, histogram: Histogram) -> None:
    reached, buckets = 0, []
    for bound, count in zip(BOUNDS, histogram.counts, strict=True):
        reached += count
        buckets.append((bound, float(reached)))
    family.add_metric([model], buckets, histogram.total)


def exposition(ledger: Ledger, desk: Desk, store: Store) -> Callable[[], bytes]:
    """A function that prints all metrics of this gateway."""
    registry = CollectorRegistry()
    registry.register(GatewayCollector(ledger, desk, store))
    ProcessCollector(registry=registry)
    return lambda: generate_latest(registry)
