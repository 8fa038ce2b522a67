"""What the rows of a ledger prove: who was billed, how often at once, for how long, and who was touched."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator

import msgspec

from skysail.cloud.simulated.ledger import Row


class Charge(msgspec.Struct, kw_only=True):
    """For one claim. `at_once`: the most instances that were billed at the same time."""

    instances: int = 0
    at_once: int = 0
    seconds: float = 0.0
    usd: float = 0.0


def rows_of_cluster(rows: Iterable[Row], cluster: str) -> Iterator[Row]:
    """The rows about instances of this cluster, and about its calls that were not done."""
    mine: set[str] = set()
    for row in rows:
        if row.verb == "create" and row.cluster == cluster:
            mine.add(row.instance)
        if row.instance in mine or row.cluster == cluster:
            yield row


def charges(rows: Iterable[Row], until: float) -> dict[str, Charge]:
    """By claim, with what still runs billed until this moment."""
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
    """The largest number of instances that one claim was billed for at the same time. Must be 1."""
    return max((charge.at_once for claim, charge in charges(rows, 0.0).items() if claim), default=0)


def billable(rows: Iterable[Row]) -> tuple[Row, ...]:
    """The beginnings of those that are billed at the end."""
    alive: dict[str, Row] = {}
    for row in rows:
        if row.verb == "create":
            alive[row.instance] = row
        elif row.verb == "ended":
            del alive[row.instance]
    return tuple(alive.values())


def orphans(rows: Iterable[Row], *, cluster: str, claims: Collection[str]) -> tuple[Row, ...]:
    """Those of this cluster that are billed at the end although nobody claims them. Must be none."""
    return tuple(row for row in billable(rows) if row.cluster == cluster and row.claim not in claims)


def foreign_instances_touched(rows: Iterable[Row], *, cluster: str) -> tuple[str, ...]:
    """Instances of others that somebody asked to end, whether or not the cloud did it. Must be none."""
    strangers: set[str] = set()
    touched: list[str] = []
    for row in rows:
        if row.verb == "create" and row.cluster != cluster:
            strangers.add(row.instance)
        elif row.verb in {"end asked", "refused"} and row.instance in strangers:
            touched.append(row.instance)
    return tuple(touched)


def cost(begin: Row, until: float) -> float:
    """What an instance has cost from its creation until then."""
    return round(begin.usd * (until - begin.at) / 3600, 6)


def _add(charge: Charge, begin: Row, until: float) -> None:
    charge.seconds += until - begin.at
    charge.usd = round(charge.usd + cost(begin, until), 6)
