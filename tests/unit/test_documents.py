"""Documents name files that exist, and the architecture page names every package."""

from __future__ import annotations

import re

import pytest
import typer

from skysail.cli.main import application
from tests.support.documents import ROOT, commands, pages, shown_commands

SOURCE = ROOT / "src" / "skysail"
SKYSAIL = typer.main.get_command(application())
# The right column of a table.
_HERE = re.compile(r"^\|.*\|(?P<here>[^|]*)\|$", re.MULTILINE)
_PATH = re.compile(r"`((?:src|docs|config|tests|inference)(?:/[\w./-]*)?)`")


def test_what_people_come_from_is_found_where_the_page_says():
    documents = (ROOT / "docs/coming-from.md", *(ROOT / "docs/coming-from").glob("*.md"))
    rows = [row for document in documents for row in _HERE.findall(document.read_text())]
    named = {path for row in rows for path in _PATH.findall(row)}
    assert len(named) > 15
    assert {path for path in named if not (ROOT / path).exists()} == set()


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_exist_with_their_options(page):
    for words in shown_commands(page):
        command = SKYSAIL
        while words and hasattr(command, "commands"):
            assert words[0] in command.commands, f"skysail {words[0]}"
            command = command.commands[words.pop(0)]
        # A command without arguments is only named.
        if words and "--help" not in words:
            _parse(command, words)


def _parse(command, words):
    try:
        command.make_context(command.name, list(words))
    except typer.BadParameter as error:
        if type(error).__name__ != "MissingParameter":
            raise


def test_start_page_shows_only_steps_that_the_readme_shows_in_the_same_order():
    """The steps of the README run as an e2e test, and so do these."""
    steps = iter(commands("README.md"))
    assert [step for step in commands("docs/start.md") if step not in steps] == []


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
