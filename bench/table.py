"""A plain table: a row per question, a column per contestant, each with its multiple of the first one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

_CELL = 22


class Row(msgspec.Struct, frozen=True):
    what: str
    values: list[float]


def render(title: str, columns: Sequence[str], rows: Sequence[Row]) -> str:
    width = max(len(row.what) for row in rows) + 2
    head = " " * width + "".join(f"{column:>{_CELL}}" for column in columns)
    lines = [f"{row.what:<{width}}" + "".join(_cells(row.values)) for row in rows]
    return "\n".join([title, "", head, *lines])


def _cells(values: list[float]) -> list[str]:
    first = values[0]
    return [f"{f'{number(value)}  ({_multiple(value, first)})':>{_CELL}}" for value in values]


def _multiple(value: float, first: float) -> str:
    return f"{number(value / first)}x" if first else "-"


def number(value: float) -> str:
    """Two or three digits that mean something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
