"""Documents name files that exist, and the architecture page names every package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "skysail"
# The right column of a table.
_HERE = re.compile(r"^\|.*\|(?P<here>[^|]*)\|$", re.MULTILINE)
_PATH = re.compile(r"`((?:src|docs|config|tests|inference)(?:/[\w./-]*)?)`")


def test_what_people_come_from_is_found_where_the_page_says():
    rows = _HERE.findall((ROOT / "docs/coming-from.md").read_text())
    named = {path for row in rows for path in _PATH.findall(row)}
    assert len(named) > 15
    assert {path for path in named if not (ROOT / path).exists()} == set()


@pytest.mark.parametrize(
    "document", ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_somewhere(document):
    text = (ROOT / document).read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    folder = (ROOT / document).parent
    assert [link for link in links if not (folder / link).exists()] == []


def test_architecture_tree_names_every_package():
    tree = (ROOT / "docs/architecture.md").read_text().split("```")[1]
    named = set(re.findall(r"(\w+)/", tree))
    packages = [path.parent.relative_to(SOURCE) for path in SOURCE.rglob("__init__.py")]
    assert {str(path) for path in packages if 0 < len(path.parts) <= 2 and path.name not in named} == set()


def test_architecture_page_names_files_that_exist():
    text = (ROOT / "docs/architecture.md").read_text()
    paths = set(re.findall(r"`((?:\w+/)+\w+\.py)`", text))
    assert len(paths) > 50
    assert {path for path in paths if not any((folder / path).exists() for folder in (SOURCE, ROOT))} == set()
    files = {path.name for path in SOURCE.rglob("*.py")} | {"test_law.py", "test_documents.py"}
    assert set(re.findall(r"\b\w+\.py\b", text)) - files == set()


def test_threat_model_names_existing_tests():
    rows = re.findall(r"`(tests/security/\w+\.py)::(\w+)`", (ROOT / "docs/threat-model.md").read_text())
    assert len(rows) > 15
    for path, test in rows:
        assert f"def {test}" in (ROOT / path).read_text(), f"{path}::{test}"
