"""Metrics of budgets, reported by the leader from its caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from skysail.base.metrics import Metrics
from skysail.base.names import Metric
from skysail.claims.limits import budget
from skysail.claims.limits.budget import WARNING_SHARE, BudgetUse
from skysail.claims.limits.limits_reader import LimitsReader

Figures = Mapping[tuple[str, ...], float]


class SpendingMetrics:
    """Reservations, spend and budgets by namespace. `leads`: whether this process reports."""

    def __init__(self, limits: LimitsReader, leads: Callable[[], bool], now: Callable[[], datetime]) -> None:
        self._limits = limits
        self._leads = leads
        self._now = now

    def register(self, metrics: Metrics) -> None:
        labels = ("namespace", "policy")
        metrics.add_labelled_callback(Metric.RESERVED_USD, ("namespace",), self._reserved)
        metrics.add_labelled_callback(Metric.SPENT_USD, labels, lambda: self._by_policy(lambda row: row.spent))
        metrics.add_labelled_callback(Metric.BUDGET_USD, labels, lambda: self._by_policy(lambda row: row.amount))
        metrics.add_labelled_callback(
            Metric.BUDGET_LOW, labels, lambda: self._by_policy(lambda row: float(row.share >= WARNING_SHARE))
        )
        metrics.add_labelled_callback(
            Metric.BUDGET_EXHAUSTED, labels, lambda: self._by_policy(lambda row: float(row.share >= 1))
        )

    def _reserved(self) -> Figures:
        if not self._leads():
            return {}
        return {(account.metadata.name,): budget.reserved(account.status) for account in self._limits.accounts.all()}

    def _by_policy(self, figure: Callable[[BudgetUse], float]) -> Figures:
        if not self._leads():
            return {}
        return {
            (account.metadata.name, used.policy): figure(used)
            for account in self._limits.accounts.all()
            for used in budget.use(account.status, self._limits.limits(account.metadata.name).budgets, self._now())
        }
