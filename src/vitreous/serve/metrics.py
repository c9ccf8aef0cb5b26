"""The metrics of /metrics, for Prometheus."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

LATENCIES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 64)

Gauges = Callable[[], Iterable[tuple[str, str, str, float]]]  # name, help, model, value


class _Read(Collector):
    """Gauges that are read when they are collected."""

    def __init__(self, gauges: Gauges) -> None:
        self.gauges = gauges

    def collect(self) -> Iterable[Metric]:
        families: dict[str, GaugeMetricFamily] = {}
        for name, text, model, value in self.gauges():
            family = families.setdefault(name, GaugeMetricFamily(name, text, labels=["model"]))
            family.add_metric([model], value)
        return families.values()


class Metrics:
    def __init__(self, gauges: Gauges) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Read(gauges))
        self.requests = Counter(
            "vitreous_requests", "Requests answered, by path and status.", ["path", "code"], registry=self.registry
        )
        self.latency = Histogram(
            "vitreous_request_seconds",
            "Time from a request's head to its response, for requests with a result.",
            ["path"],
            buckets=LATENCIES_S,
            registry=self.registry,
        )
        self.batches = Histogram(
            "vitreous_batch_pictures", "Pictures per batch.", ["model"], buckets=BATCHES, registry=self.registry
        )

    def text(self) -> bytes:
        return generate_latest(self.registry)
