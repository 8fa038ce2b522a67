"""Conclusions from the rows of a ledger: charges by claim, concurrent instances, orphans, and foreign instances."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator

import msgspec

from skysail.cloud.simulated.ledger import Row


class Charge(msgspec.Struct, kw_only=True):
    """Charge of one claim. `at_once`: the maximum number of instances that were billed at the same time."""

    instances: int = 0
    at_once: int = 0
    seconds: float = 0.0
    usd: float = 0.0


def rows_of_cluster(rows: Iterable[Row], cluster: str) -> Iterator[Row]:
    """Yield the rows about instances of this cluster, and about its calls that failed."""
    own: set[str] = set()
    for row in rows:
        if row.verb == "create" and row.cluster == cluster:
            own.add(row.instance)
        if row.instance in own or row.cluster == cluster:
            yield row


def charges(rows: Iterable[Row], until: float) -> dict[str, Charge]:
    """Return charges by claim. Running instances are billed up to `until`."""
    found: defaultdict[str, Charge] = defaultdict(Charge)
    alive: dict[str, Row] = {}
    at_once: Counter[str] = Counter()
    for row in rows:
        if row.verb == "create":
            alive[row.instance] = row
            at_once[row.claim] += 1
            found[row.claim].instances += 1
            found[row.claim].at_once = max(found[row.claim].at_once, at_once[row.claim])
        elif row.verb == "ended":
            begin = alive.pop(row.instance)
            at_once[begin.claim] -= 1
            _add(found[begin.claim], begin, row.at)
    for begin in alive.values():
        _add(found[begin.claim], begin, until)
    return dict(found)


def max_concurrent(rows: Iterable[Row]) -> int:
    """Return the maximum number of instances that one claim was billed for at the same time. Must be 1."""
    return max((charge.at_once for claim, charge in charges(rows, 0.0).items() if claim), default=0)


def billable(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return the `create` rows of instances that are still billed after the last row."""
    alive: dict[str, Row] = {}
    for row in rows:
        if row.verb == "create":
            alive[row.instance] = row
        elif row.verb == "ended":
            del alive[row.instance]
    return tuple(alive.values())


def orphans(rows: Iterable[Row], *, cluster: str, claims: Collection[str]) -> tuple[Row, ...]:
    """Return instances of this cluster that are still billed but have no claim. Must be empty."""
    return tuple(row for row in billable(rows) if row.cluster == cluster and row.claim not in claims)


def foreign_instances_touched(rows: Iterable[Row], *, cluster: str) -> tuple[str, ...]:
    """Return foreign instances for which a terminate call was made, successful or not. Must be empty."""
    foreign: set[str] = set()
    touched: list[str] = []
    for row in rows:
        if row.verb == "create" and row.cluster != cluster:
            foreign.add(row.instance)
        elif row.verb in {"end asked", "refused"} and row.instance in foreign:
            touched.append(row.instance)
    return tuple(touched)


def cost(begin: Row, until: float) -> float:
    """Return the cost of an instance from its creation to `until`."""
    return round(begin.usd * (until - begin.at) / 3600, 6)


def _add(charge: Charge, begin: Row, until: float) -> None:
    charge.seconds += until - begin.at
    charge.usd = round(charge.usd + cost(begin, until), 6)
