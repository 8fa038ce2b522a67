"""What the documents show works: their commands run here, in their order, as a newcomer types them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
# `make` ends in these; the rest of `make up` is this very test run's environment.
SAME = {"make up": "skysail up"}
# Run by whoever runs this test, or by the shell that is left.
NOT_HERE = ("make test", "make check", "make generate", "export PATH", ".venv/bin/python -m pytest")


def commands(document: Path) -> list[tuple[str, str]]:
    """Each command with what the document shows of its answer."""
    found: list[tuple[str, str]] = []
    for block in CONSOLE.findall(document.read_text()):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((re.sub(r"\s+#.*", "", line[2:]).strip(), ""))
            else:
                found[-1] = (found[-1][0], (found[-1][1] + "\n" + line).strip())
    return [(SAME.get(command, command), shown) for command, shown in found if not command.startswith(NOT_HERE)]


@pytest.fixture
def shell(tmp_path, cluster):
    """A newcomer's shell. `cluster` comes first, because it builds the control plane where there is none."""
    env = {
        **os.environ,
        "SKYSAIL_HOME": str(tmp_path / "home"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }

    def run(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", command], cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=300
        )

    yield run
    run("skysail down --purge")


@pytest.mark.parametrize("document", ["README.md"])
def test_the_commands_of_a_document_do_what_it_shows(shell, document):
    steps = commands(ROOT / document)
    assert len(steps) > 5
    for command, shown in steps:
        done = shell(command)
        assert shown in done.stdout + done.stderr, command
        assert done.returncode == 0 or shown, f"{command}: {done.stdout}{done.stderr}"


def test_every_link_between_the_documents_leads_somewhere():
    for document in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")):
        prose = re.sub(r"`[^`\n]*`", "", document.read_text())  # a pattern of a field may look like a link
        for target in re.findall(r"\]\(([^)#]+)", prose):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name}: {target}"
