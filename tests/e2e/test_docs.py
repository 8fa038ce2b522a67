"""What the documents show works: their commands run here, in their order, as a newcomer types them."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.support.documents import ROOT, follow, manifests, newcomer
from tests.support.kubectl import fresh_namespace


@pytest.fixture
def shell(tmp_path, cluster):
    """`cluster` comes first, because it builds the control plane where there is none."""
    with newcomer(tmp_path / "home", seconds=900) as run:
        yield run


@pytest.mark.parametrize("document", ["README.md", "docs/serving.md"])
def test_the_commands_of_a_document_do_what_it_shows(shell, document):
    follow(shell, document)


def test_the_api_server_accepts_every_manifest_that_a_document_shows(cluster, operator):
    """With its admission webhooks, and no field that a kind does not have."""
    shown = [*manifests(), *_examples()]
    assert len(shown) > 15
    assert operator
    with fresh_namespace(cluster) as namespace:
        for _, manifest in shown:
            manifest["metadata"].pop("namespace", None)
        text = yaml.safe_dump_all([manifest for _, manifest in shown])
        arguments = ("apply", "--dry-run=server", "--validate=strict", "-n", namespace, "-f", "-")
        done = cluster.kubectl(*arguments, stdin=text)
    # This cluster has no account at a cloud, and admission says so for pods that ask for one.
    complaints = [line for line in done.stderr.splitlines() if "NoAccount" not in line]
    assert complaints == [], [place for place, _ in shown]
    assert done.stdout.count("(server dry run)") == len(shown)


def _examples():
    for path in sorted(ROOT.glob("examples/**/*.yaml")):
        for manifest in yaml.safe_load_all(path.read_text()):
            yield str(path), manifest


def test_every_link_between_the_documents_leads_somewhere():
    for document in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")):
        prose = re.sub(r"`[^`\n]*`", "", document.read_text())  # a pattern of a field may look like a link
        for target in re.findall(r"\]\(([^)#]+)", prose):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name}: {target}"
