"""Running and past spend at clouds, grouped, for `skysail cost`. Pure.

Running spend is computed here from price and start time of each claim. Past spend is in the totals of SpendAccounts.
The cost of a terminated claim is in these totals as soon as its reservation is gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from skysail.claims.limits import budget
from skysail.claims.limits.spend_account import SpendAccount
from skysail.claims.plan.status import accrued_cost
from skysail.claims.types import CloudInstance
from skysail.cli import text_table

NO_GPU = "no GPU"
_BLOCKS = " ▏▎▍▌▋▊▉█"
_MAX_BAR_WIDTH = 40
_MIN_BAR_WIDTH = 8


class Grouping(StrEnum):
    """Key by which costs are added up."""

    NAMESPACE = "namespace"
    OWNER = "owner"
    GPU = "gpu"
    DAY = "day"


class CostRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Costs of one key in US dollars. `instances` and `usd_per_hour` are of the instances that run now."""

    key: str
    instances: int = 0
    usd_per_hour: float = 0.0
    running_usd: float = 0.0
    past_usd: float = 0.0
    total_usd: float = 0.0


class CostReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Costs by key, and their sum. `since`: first day of the past spend. `notes`: sentences about the numbers."""

    by: Grouping
    since: str
    rows: tuple[CostRow, ...]
    total: CostRow
    notes: tuple[str, ...] = ()


class CostQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Selection of a report. An empty namespace means all. `days`: length of the past, today included."""

    by: Grouping
    namespace: str = ""
    days: int = 30


class _Item(msgspec.Struct, frozen=True, kw_only=True):
    """One amount with all keys by which it can be grouped. `owner` is empty in totals of accounts."""

    namespace: str
    owner: str
    gpu: str
    day: str
    usd: float
    is_running: bool = False
    instances: int = 0
    usd_per_hour: float = 0.0


def report(
    claims: Iterable[CloudInstance], accounts: Sequence[SpendAccount] | None, query: CostQuery, now: datetime
) -> CostReport:
    """Add up all costs. `accounts` is None if they cannot be read."""
    since = (now - timedelta(days=query.days - 1)).date().isoformat()
    own = [claim for claim in claims if query.namespace in {"", claim.spec.owner.namespace}]
    items = [*_from_claims(own, accounts or (), now), *_from_accounts(own, accounts or (), query)]
    grouped: defaultdict[str, list[_Item]] = defaultdict(list)
    for item in items:
        if item.is_running or item.day >= since:
            grouped[_key(item, query.by)].append(item)
    rows = [_row(key, members) for key, members in sorted(grouped.items())]
    if query.by is not Grouping.DAY:
        rows.sort(key=lambda row: -row.total_usd)
    total = _row("TOTAL", [item for members in grouped.values() for item in members])
    return CostReport(by=query.by, since=since, rows=tuple(rows), total=total, notes=tuple(_notes(own, accounts)))


def render(result: CostReport, *, width: int = 0) -> list[str]:
    """Return the lines. With a `width`, bars fill the rest of each line; names are never cut for them."""
    header = (result.by.upper(), "INSTANCES", "USD/H", "RUNNING USD", "PAST USD", "TOTAL USD")
    rows = (*result.rows, result.total) if result.rows else ()
    lines = text_table.render(header, [_cells(row) for row in rows], right=header[1:])
    longest = max(len(line) for line in lines)
    bar_width = min(_MAX_BAR_WIDTH, width - longest - 2)
    if bar_width >= _MIN_BAR_WIDTH:
        most = max((row.total_usd for row in result.rows), default=0.0)
        bars = ["", *(bar(row.total_usd, most, bar_width) for row in result.rows), ""]
        lines = [f"{line.ljust(longest)}  {drawn}".rstrip() for line, drawn in zip(lines, bars, strict=False)]
    if not rows:
        lines = [f"No costs since {result.since}."]
    return [*lines, *result.notes]


def bar(value: float, most: float, width: int) -> str:
    """Return a bar whose length is proportional. Any positive value is visible."""
    if value <= 0 or most <= 0:
        return ""
    eighths = max(1, round(value / most * width * 8))
    full, rest = divmod(eighths, 8)
    return _BLOCKS[-1] * full + (_BLOCKS[rest] if rest else "")


def _from_claims(claims: Iterable[CloudInstance], accounts: Sequence[SpendAccount], now: datetime) -> Iterator[_Item]:
    for claim in claims:
        if claim.status.state != "Terminated":
            yield from _running(claim, now)
        elif not _is_settled(claim, accounts):
            yield from _past(claim, now)


def _running(claim: CloudInstance, now: datetime) -> Iterator[_Item]:
    status = claim.status
    has_instance = bool(status.instance_id)
    usd = accrued_cost(status, now.timestamp()) + sum(earlier.usd for earlier in status.earlier_instances)
    start = datetime.fromisoformat(status.start_time) if status.start_time else now
    for day, part in budget.split_by_day(usd, start, now):
        is_today = day == now.date().isoformat()
        if part or (has_instance and is_today):
            yield _item(
                claim,
                day,
                part,
                is_running=True,
                instances=int(has_instance and is_today),
                usd_per_hour=status.usd_per_hour or 0.0 if has_instance and is_today else 0.0,
            )


def _past(claim: CloudInstance, now: datetime) -> Iterator[_Item]:
    status = claim.status
    if status.usd_total:
        end = datetime.fromisoformat(status.end_time) if status.end_time else now
        start = datetime.fromisoformat(status.start_time) if status.start_time else end
        for day, part in budget.split_by_day(status.usd_total, start, end):
            yield _item(claim, day, part)


def _item(
    claim: CloudInstance,
    day: str,
    usd: float,
    *,
    is_running: bool = False,
    instances: int = 0,
    usd_per_hour: float = 0.0,
) -> _Item:
    return _Item(
        namespace=claim.spec.owner.namespace,
        owner=_owner(claim),
        gpu=_gpu(claim),
        day=day,
        usd=usd,
        is_running=is_running,
        instances=instances,
        usd_per_hour=usd_per_hour,
    )


def _from_accounts(
    claims: Sequence[CloudInstance], accounts: Iterable[SpendAccount], query: CostQuery
) -> Iterator[_Item]:
    """Yield the totals. By owner, settled claims that still exist have a row each, and only the rest is a sum."""
    for account in accounts:
        namespace = account.spec.namespace
        if query.namespace not in {"", namespace}:
            continue
        named: defaultdict[str, float] = defaultdict(float)
        if query.by is Grouping.OWNER:
            for item in _settled_items(claims, account):
                named[item.day] += item.usd
                yield item
        for total in account.status.totals:
            known = min(named[total.day], total.usd)
            named[total.day] -= known
            if total.usd > known:
                yield _Item(
                    namespace=namespace, owner="", gpu=total.gpu or NO_GPU, day=total.day, usd=total.usd - known
                )


def _settled_items(claims: Sequence[CloudInstance], account: SpendAccount) -> Iterator[_Item]:
    for claim in claims:
        if claim.spec.owner.namespace == account.spec.namespace and _is_settled(claim, (account,)):
            end = claim.status.end_time
            if end is not None:
                yield from _past(claim, datetime.fromisoformat(end))


def _is_settled(claim: CloudInstance, accounts: Sequence[SpendAccount]) -> bool:
    """Return whether the final cost is in the totals of an account."""
    if claim.status.state != "Terminated" or claim.status.reserved_usd is None:
        return False
    account = next((row for row in accounts if row.spec.namespace == claim.spec.owner.namespace), None)
    return account is not None and budget.find(account.status, claim.metadata.name) is None


def _key(item: _Item, by: Grouping) -> str:
    match by:
        case Grouping.NAMESPACE:
            return item.namespace
        case Grouping.OWNER:
            return item.owner or f"{item.namespace}: deleted objects"
        case Grouping.GPU:
            return item.gpu
        case Grouping.DAY:
            return item.day


def _owner(claim: CloudInstance) -> str:
    for_ = claim.spec.owner
    return f"{for_.namespace}/{for_.kind.lower()}/{for_.name}"


def _gpu(claim: CloudInstance) -> str:
    rows, index = claim.spec.candidates, claim.status.candidate
    if index < len(rows):
        return rows[index].gpu_type or NO_GPU
    return claim.spec.gpu.type if claim.spec.gpu else NO_GPU


def _row(key: str, items: Sequence[_Item]) -> CostRow:
    running = sum(item.usd for item in items if item.is_running)
    past = sum(item.usd for item in items if not item.is_running)
    return CostRow(
        key=key,
        instances=sum(item.instances for item in items),
        usd_per_hour=round(sum(item.usd_per_hour for item in items), 6),
        running_usd=round(running, 6),
        past_usd=round(past, 6),
        total_usd=round(running + past, 6),
    )


def _cells(row: CostRow) -> tuple[str, ...]:
    return (
        row.key,
        str(row.instances),
        f"{row.usd_per_hour:.2f}",
        f"{row.running_usd:.4f}",
        f"{row.past_usd:.4f}",
        f"{row.total_usd:.4f}",
    )


def _notes(claims: Iterable[CloudInstance], accounts: Sequence[SpendAccount] | None) -> Iterator[str]:
    unknown = sum(claim.status.state in {"Launching", "Unknown"} for claim in claims)
    if unknown:
        who, whose = (
            ("1 launch has", "its instance") if unknown == 1 else (f"{unknown} launches have", "their instances")
        )
        yield f"{who} no known outcome yet: {whose} may run and cost money."
    if accounts is None:
        yield "Past spend of deleted objects is not included: you may not list SpendAccounts."
