"""Counts of connections and bytes by route, and the limits on open connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from prometheus_client import Histogram

from skysail.base.metrics import Metrics
from skysail.base.names import Metric
from skysail.bridge.routes import Route

Outcome = Literal["ok", "failed", "limited", "unreachable", "aborted", "rejected"]
Direction = Literal["in", "out"]
_LABELS = ("namespace", "owner", "port")


class Traffic:
    """Counters of one bridge. Series of routes that are gone are dropped, so that memory is bounded."""

    def __init__(self, metrics: Metrics, *, max_connections: int, max_connections_per_route: int) -> None:
        self._max_connections = max_connections
        self._max_per_route = max_connections_per_route
        self._open: Counter[tuple[str, ...]] = Counter()
        self._open_by_namespace: Counter[str] = Counter()
        self._requests: Counter[tuple[str, ...]] = Counter()
        self._bytes: Counter[tuple[str, ...]] = Counter()
        self._routes = 0
        self._seconds: Histogram = metrics.add_histogram(Metric.BRIDGE_SECONDS, _LABELS)
        self._timed: set[tuple[str, ...]] = set()
        metrics.add_callback(Metric.BRIDGE_ROUTES, "", lambda: {"": self._routes})
        metrics.add_labelled_callback(Metric.BRIDGE_OPEN, _LABELS, lambda: self._open)
        metrics.add_labelled_callback(Metric.BRIDGE_REQUESTS, (*_LABELS, "outcome"), lambda: self._requests)
        metrics.add_labelled_callback(Metric.BRIDGE_BYTES, (*_LABELS, "direction"), lambda: self._bytes)

    @property
    def open_connections(self) -> int:
        return self._open.total()

    def admit(self, route: Route) -> bool:
        """Count a new connection, unless a limit is reached. Call `leave` once for each admitted connection.

        A namespace has at most half of what the others leave free, so that no tenant can take all connections.
        """
        series = _series(route)
        total, own = self._open.total(), self._open_by_namespace[route.namespace]
        share = max(1, (self._max_connections - (total - own)) // 2)
        if total >= self._max_connections or own >= share or self._open[series] >= self._max_per_route:
            self.count(route, "limited")
            return False
        self._open[series] += 1
        self._open_by_namespace[route.namespace] += 1
        return True

    def leave(self, route: Route) -> None:
        for counter, key in ((self._open, _series(route)), (self._open_by_namespace, route.namespace)):
            _decrement(counter, key)

    def count(self, route: Route, outcome: Outcome) -> None:
        self._requests[*_series(route), outcome] += 1

    def observe(self, route: Route, seconds: float) -> None:
        """Record the time until the cloud accepted a connection, or began to answer a request."""
        series = _series(route)
        self._timed.add(series)
        self._seconds.labels(*series).observe(seconds)

    def add_bytes(self, route: Route, direction: Direction, count: int) -> None:
        self._bytes[*_series(route), direction] += count

    def keep(self, routes: Mapping[int, Route]) -> None:
        """Drop the series of all other routes, unless they have open connections."""
        self._routes = len(routes)
        kept = {_series(route) for route in routes.values()} | self._open.keys()
        for counter in (self._requests, self._bytes):
            for series in [series for series in counter if series[:3] not in kept]:
                del counter[series]
        for series in self._timed - kept:
            self._timed.discard(series)
            self._seconds.remove(*series)


def _decrement(counter: Counter[Any], key: Any) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


def _series(route: Route) -> tuple[str, ...]:
    return route.namespace, route.owner, str(route.target_port)
