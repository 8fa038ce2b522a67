"""The commands that a document shows, and the shell of a newcomer who types them."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Shell = Callable[[str], subprocess.CompletedProcess[str]]

ROOT = Path(__file__).parents[2]
_YAML = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)
# Kinds of other projects, which the control plane of the tests does not serve.
_FOREIGN = ("kubeflow.org/", "serving.kserve.io/")
_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`(skysail [^`]+)`")
_CONSOLE = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
# What is long for a newcomer's machine may be short for one that runs tests.
_LIMIT = re.compile(r"--timeout=\w+")
# `make` ends in these; the rest of `make up` is this very test run's environment.
_SAME = {"make up": "skysail up"}
# Run by whoever runs the tests, or by the shell that is left.
_NOT_HERE = ("make test", "make check", "make generate", "export PATH", ".venv/bin/python -m pytest")


def pages() -> list[Path]:
    """Documents for users, written by hand."""
    found = (ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"))
    return sorted(path for path in found if path.parent.name not in ("adr", "reference"))


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each manifest that a document shows as a whole, with its place."""
    for page in pages():
        for block in _YAML.findall(page.read_text()):
            for manifest in yaml.safe_load_all(block):
                if "kind" in manifest and not manifest["apiVersion"].startswith(_FOREIGN):
                    yield str(page), manifest


def shown_commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of each command `skysail` that a page shows, without the command itself."""
    text = page.read_text()
    lines = [line.strip().removeprefix("$ ") for block in _FENCE.findall(text) for line in block.splitlines()]
    lines += _INLINE.findall(_FENCE.sub("", text).replace("\n", " "))
    for line in lines:
        if (match := re.match(r"(?:\w+=\S+ )*skysail ([a-z].*)", line)) and "…" not in line:
            yield shlex.split(re.split(r"\s+#| \| | > ", match[1])[0])


def commands(document: str) -> list[tuple[str, str]]:
    """Each command with what the document shows of its answer."""
    return _commands((ROOT / document).read_text())


def sections(document: str) -> dict[str, list[tuple[str, str]]]:
    """Return the commands of each section that has any, by its heading."""
    parts = (part.partition("\n") for part in (ROOT / document).read_text().split("\n## ")[1:])
    return {title: steps for title, _, text in parts if (steps := _commands(text))}


def _commands(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for block in _CONSOLE.findall(text):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((_LIMIT.sub("--timeout=10m", re.sub(r"\s+#.*", "", line[2:]).strip()), ""))
            else:
                found[-1] = (found[-1][0], (found[-1][1] + "\n" + line).strip())
    return [(_SAME.get(command, command), shown) for command, shown in found if not command.startswith(_NOT_HERE)]


def follow(shell: Shell, document: str) -> None:
    """Type all of it, in its order; each answer is what the document shows, or at least no failure."""
    steps = commands(document)
    assert len(steps) > 5
    take(shell, steps)


def take(shell: Shell, steps: Iterable[tuple[str, str]]) -> None:
    for command, shown in steps:
        done = shell(command)
        assert shown in done.stdout + done.stderr, f"{command}: {done.stdout}{done.stderr}"
        assert done.returncode == 0 or shown, f"{command}: {done.stdout}{done.stderr}"


@contextlib.contextmanager
def newcomer(home: Path, *, seconds: float) -> Iterator[Shell]:
    """A shell in the checkout, with a cluster of its own, which is gone afterwards. No command takes longer."""
    env = {
        **os.environ,
        "SKYSAIL_HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }

    def run(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", command], cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=seconds
        )

    try:
        yield run
    finally:
        run("skysail down --purge")
