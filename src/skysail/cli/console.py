"""Output of tables: as wide as they need to be for programs, folded and never cut for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Column, Table

# Wider than any row: rich wraps at 80 characters if the output is no terminal.
_UNBOUNDED = 10_000


def open_console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_UNBOUNDED)


def table(*headings: str) -> Table:
    """Return a table whose cells are folded where they do not fit. By default rich cuts long names."""
    return Table(*(Column(heading, overflow="fold") for heading in headings))
