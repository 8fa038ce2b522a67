"""Tables in plain text, as kubectl prints them. Nothing is cut or wrapped, so that programs can read them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

_GAP = "  "


def render(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()) -> list[str]:
    """Return the lines of a table. Columns whose name is in `right` are aligned to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    is_right = [name in right for name in header]
    return [_line(row, widths, is_right) for row in (header, *rows)]


def _line(row: Sequence[str], widths: Sequence[int], is_right: Sequence[bool]) -> str:
    cells = (
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(row, widths, is_right, strict=True)
    )
    return _GAP.join(cells).rstrip()
