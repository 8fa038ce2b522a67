"""Metrics of claims and orphans, reported by the leader from its caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from skysail.base.metrics import Metrics
from skysail.base.names import Metric
from skysail.claims.orphan_collector import OrphanCollector
from skysail.claims.types import CloudInstance
from skysail.kube.cache.cache import Cache


class ClaimMetrics:
    """Counts claims by cloud and state, and orphans by cloud. `leads`: whether this process reports."""

    def __init__(
        self, claims: Cache[CloudInstance], collectors: Mapping[str, OrphanCollector], leads: Callable[[], bool]
    ) -> None:
        self._claims = claims
        self._collectors = collectors
        self._leads = leads

    def register(self, metrics: Metrics) -> None:
        metrics.add_labelled_callback(Metric.CLAIMS, ("cloud", "state"), self._by_state)
        metrics.add_callback(Metric.ORPHANS, "cloud", self._orphans)

    def _by_state(self) -> Mapping[tuple[str, ...], float]:
        claims = self._claims.all() if self._leads() else []
        return Counter((claim.spec.provider, claim.status.state or "Claimed") for claim in claims)

    def _orphans(self) -> dict[str, float]:
        if not self._leads():
            return {}
        return {cloud: float(len(collector.orphans)) for cloud, collector in self._collectors.items()}
