"""What documents name is there: a path that went elsewhere misleads whoever comes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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
