"""Layouts for servers that search a folder and decide themselves what they can load."""

from __future__ import annotations

from pathlib import Path


def as_folder(tree: Path, into: Path, _name: str) -> None:
    """Lay out one file under its own name, or the content of a folder, without the outer folders of archives."""
    inner = list(tree.iterdir())
    while len(inner) == 1 and inner[0].is_dir():
        tree = inner[0]
        inner = list(tree.iterdir())
    unchanged(tree, into, _name)


def unchanged(tree: Path, into: Path, _name: str) -> None:
    for path in tree.iterdir():
        path.rename(into / path.name)
