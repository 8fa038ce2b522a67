"""Metrics of the operator. Names from controller-runtime keep their meaning, so that its dashboards work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from skysail.base.names import Metric

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

Reading = Callable[[], Mapping[str, float]]
ManyReading = Callable[[], Mapping[tuple[str, ...], float]]


class Metrics:
    """Registry of one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._wait = self._histogram(Metric.WORKQUEUE_WAIT, "name")
        self._time = self._histogram(Metric.RECONCILE_TIME, "controller")
        self._passes = Counter(
            Metric.RECONCILES.removesuffix("_total"),
            Metric.RECONCILES.description,
            ("controller", "result"),
            registry=self._registry,
        )
        self._active = Gauge(
            Metric.ACTIVE_WORKERS, Metric.ACTIVE_WORKERS.description, ("controller",), registry=self._registry
        )
        self._renamed: dict[str, tuple[Histogram, Counter]] = {}

    def reconcile_started(self, kind: str, waited: float) -> None:
        self._wait.labels(kind).observe(waited)
        self._active.labels(kind).inc()

    def reconcile_finished(self, kind: str, result: str, seconds: float) -> None:
        self._active.labels(kind).dec()
        self._passes.labels(kind, result).inc()
        self._time.labels(kind).observe(seconds)
        if kind in self._renamed:
            time, errors = self._renamed[kind]
            time.observe(seconds)
            errors.inc(result == "error")

    def add_callback(self, metric: Metric, label: str, reading: Reading) -> None:
        """Add a metric that is read by a callback at each scrape. Without a label, its key is empty."""
        self._registry.register(
            _CallbackCollector(metric, (label,), lambda: {(key,): value for key, value in reading().items()})
        )

    def add_labelled_callback(self, metric: Metric, labels: tuple[str, ...], reading: ManyReading) -> None:
        """Add a metric with several labels that is read by a callback at each scrape."""
        self._registry.register(_CallbackCollector(metric, labels, reading))

    def add_legacy_names(self, kind: str, *, time: Metric, errors: Metric) -> None:
        """Report the reconciles of one kind also under the metric names of the operator that Skysail replaces."""
        self._renamed[kind] = (
            Histogram(time, time.description, registry=self._registry, buckets=_SECONDS),
            Counter(errors.removesuffix("_total"), errors.description, registry=self._registry),
        )

    def add_histogram(
        self, metric: Metric, labels: tuple[str, ...] = (), buckets: tuple[float, ...] = _SECONDS
    ) -> Histogram:
        """Return a new histogram of seconds. The caller observes its values."""
        return Histogram(metric, metric.description, labels, registry=self._registry, buckets=buckets)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def _histogram(self, name: Metric, label: str) -> Histogram:
        return Histogram(name, name.description, (label,), registry=self._registry, buckets=_SECONDS)


class _CallbackCollector:
    def __init__(self, metric: Metric, labels: tuple[str, ...], reading: ManyReading) -> None:
        self._metric = metric
        self._labels = [label for label in labels if label]
        self._reading = reading

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        is_counter = self._metric.endswith("_total")
        family = (CounterMetricFamily if is_counter else GaugeMetricFamily)(
            self._metric.value, self._metric.description, labels=self._labels
        )
        for values, figure in self._reading().items():
            family.add_metric(values if self._labels else [], figure)
        yield family
