"""What the documents show works: their commands run here, in their order, as a newcomer types them."""

from __future__ import annotations

import re

import pytest

from tests.support.documents import ROOT, follow, newcomer


@pytest.fixture
def shell(tmp_path, cluster):
    """`cluster` comes first, because it builds the control plane where there is none."""
    with newcomer(tmp_path / "home", seconds=900) as run:
        yield run


@pytest.mark.parametrize("document", ["README.md", "docs/serving.md"])
def test_the_commands_of_a_document_do_what_it_shows(shell, document):
    follow(shell, document)


def test_every_link_between_the_documents_leads_somewhere():
    for document in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")):
        prose = re.sub(r"`[^`\n]*`", "", document.read_text())  # a pattern of a field may look like a link
        for target in re.findall(r"\]\(([^)#]+)", prose):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name}: {target}"
