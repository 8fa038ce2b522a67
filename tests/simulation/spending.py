"""Policies of a simulated cluster, and what the ledger of a cloud proves about budgets and reservations."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from skysail.base.timestamps import from_seconds
from skysail.claims.limits import budget
from skysail.claims.limits.offload_policy import OFFLOAD_POLICY
from skysail.claims.limits.spend_account import SPEND_ACCOUNT
from skysail.claims.types import CLOUD_INSTANCE
from tests.simulation.ownership import Manager
from tests.simulation.world import EPOCH
from tests.simulation.writes import Write

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skysail.cloud.simulated.ledger import Row
    from tests.simulation.world import World

Object = dict[str, Any]

# US dollars per hour and GPU. Leaves three GPU types as candidates, and not the first one at twice its price.
MAX_PRICE = 1.15
# A cloud bills by the second, and the operator notices a price when it next looks.
TICK_SECONDS = 60.0
_CENT = 1e-4


class Administrator:
    """Allows every namespace to use the cloud before anything else happens. `spec` adds limits."""

    def __init__(self, world: World, **spec: Any) -> None:
        allowed = {"namespaceSelector": {}, "providers": ["modal"], "maxInstances": 100, "maxPrice": MAX_PRICE, **spec}
        manifest = {"metadata": {"name": "default"}, "spec": allowed}
        world.create(world.kinds[OFFLOAD_POLICY.resource], manifest, Write(Manager("admin", "Update")))

    def noticed(self, obj: Object, *, gone: bool) -> None: ...


def violations(world: World, rows: Sequence[Row]) -> list[str]:
    """What must never be, whatever goes wrong."""
    return [*_left_over(world), *_uncovered(world, rows), *_miscounted(world), *_over_budget(world, rows)]


def _left_over(world: World) -> Iterator[str]:
    claims = {obj["metadata"]["name"]: obj for obj in world.objects[CLOUD_INSTANCE.resource].values()}
    for account in world.objects[SPEND_ACCOUNT.resource].values():
        for row in account.get("status", {}).get("reservations", ()):
            claim = claims.get(row["claim"])
            if claim is None or claim.get("status", {}).get("state") == "Terminated":
                yield f"{row['usd']} USD are reserved for claim {row['claim']}, which has ended"


def _uncovered(world: World, rows: Sequence[Row]) -> Iterator[str]:
    """Launches whose worst case, at the offered price, was not reserved before the cloud was called."""
    for row in rows:
        if row.verb != "create" or row.seconds is None:
            continue
        held = max((usd for at, usd in _reserved(world, row.claim) if at <= row.at), default=None)
        worst = _offered(world, row) * row.seconds / 3600
        if held is None or worst > held + _CENT:
            yield f"claim {row.claim} was launched for up to {worst} USD with {held} reserved"


def _offered(world: World, row: Row) -> float:
    """Return the price of the candidate that the claim named when the instance was created."""
    claims = [
        change.after
        for change in world.history.journal
        if change.resource == CLOUD_INSTANCE.resource
        and change.after["metadata"]["name"] == row.claim
        and EPOCH.timestamp() + change.at <= row.at
    ]
    tried = claims[-1].get("status", {}).get("candidate", 0)
    return float(claims[-1]["spec"]["candidates"][tried]["usdPerHour"])


def _reserved(world: World, claim: str) -> Iterator[tuple[float, float]]:
    """Yield when how much was reserved for a claim."""
    for change in world.history.journal:
        if change.resource == SPEND_ACCOUNT.resource:
            for row in change.after.get("status", {}).get("reservations", ()):
                if row["claim"] == claim:
                    yield EPOCH.timestamp() + change.at, row["usd"]


def _miscounted(world: World) -> Iterator[str]:
    """Costs that accounts have lost, or have counted twice."""
    costs: dict[str, float] = {}
    for change in world.history.journal:
        if change.resource == CLOUD_INSTANCE.resource:
            status = change.after.get("status", {})
            costs[change.after["metadata"]["name"]] = status.get("usdTotal", 0.0)
    accounts = world.objects[SPEND_ACCOUNT.resource].values()
    totals = sum(row["usd"] for account in accounts for row in account.get("status", {}).get("totals", ()))
    if abs(totals - sum(costs.values())) > _CENT:
        yield f"accounts say {totals} USD, and claims {sum(costs.values())}"


def _over_budget(world: World, rows: Sequence[Row]) -> Iterator[str]:
    """Periods in which the cloud billed more than the budget and one tick of each instance."""
    for policy in world.objects[OFFLOAD_POLICY.resource].values():
        limit = policy["spec"].get("budget")
        if limit is None:
            continue
        tick = sum(row.usd * TICK_SECONDS / 3600 for row in rows if row.verb == "create" and row.options.usd)
        for start, usd in billed(rows, limit.get("period", "Month")).items():
            if usd > limit["amount"] + tick + _CENT:
                yield f"{usd} USD were billed in the period from {start}, with a budget of {limit['amount']}"


def billed(rows: Sequence[Row], period: budget.Period) -> dict[str, float]:
    """Return what the cloud billed in each period, for instances that have ended."""
    starts = {row.instance: row for row in rows if row.verb == "create"}
    sums: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        if row.verb == "ended" and row.instance in starts:
            start = starts[row.instance]
            usd = start.usd * (row.at - start.at) / 3600
            for day, part in budget.split_by_day(usd, from_seconds(start.at), from_seconds(row.at)):
                moment = EPOCH.fromisoformat(f"{day}T00:00:00+00:00") + timedelta(hours=1)
                sums[budget.period_start(period, moment).date().isoformat()] += part
    return dict(sums)
