"""Every command in the documents of the five originals, one by one: tests/seed_commands.toml."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from scripts import helm
from scripts.chart import ROOT
from skysail.local.control_plane import binaries, build
from skysail.local.control_plane.flags import Component
from tests.chart.conftest import release
from tests.chart.test_install import SMALL, remove_crds, remove_leftovers
from tests.support.kubectl import TIMEOUT, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skysail.local.control_plane.binaries import Binaries
    from tests.support.cluster import Cluster

_SECONDS = 900
# A row that begins so asks an API server, unless a missing tool or a plan is expected.
_ASKING = re.compile(r"kubectl (?!version )|make (un)?(install|deploy)\b")
_LOCAL_PORT = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"with_": "with"}):
    """One row of the table, whose head explains the fields."""

    seed: str
    line: int
    run: str
    expect: str
    preset: str = ""
    before: str = ""
    append: str = ""
    with_: dict[str, str] = {}
    prints: str = ""
    tool: str = ""
    make: str = ""
    path: str = ""
    reason: str = ""

    @property
    def text(self) -> str:
        text = self.run
        for placeholder, value in self.with_.items():
            text = text.replace(placeholder, value)
        return f"{text} {self.append}".strip()

    @property
    def needs_cluster(self) -> bool:
        return bool(self.preset) or (self.expect == "ok" and _ASKING.match(self.run) is not None)


ROWS = msgspec.convert(tomllib.loads((ROOT / "tests" / "seed_commands.toml").read_text())["command"], list[Command])


class Shell:
    """A copy of the project, with kubectl, Helm, uv and inv on PATH, and the kubeconfig of a cluster, if any."""

    def __init__(self, programs: Binaries, binary: Path, folder: Path, kubeconfig: Path | None = None) -> None:
        self.folder = folder / "skysail"
        self._copy()
        self._programs = folder / "bin"
        self._programs.mkdir()
        (self._programs / "helm").symlink_to(binary)
        kubectl = self._programs / "kubectl"
        kubectl.write_text(f'#!/bin/sh\nexec {shlex.join(programs.commands[Component.KUBECTL])} "$@"\n')
        kubectl.chmod(0o755)
        beside = Path(sys.executable).parent
        for name in ("uv", "inv", "invoke"):
            (self._programs / name).symlink_to(beside / name)
        kept = {name: os.environ[name] for name in ("HOME", "PATH", "XDG_CACHE_HOME") if name in os.environ}
        proxies = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_", "SSL_"))}
        own = {"UV_PROJECT_ENVIRONMENT": str(folder / "uv"), "KUBECONFIG": str(kubeconfig or folder / "none")}
        self.env = {**kept, **proxies, **own}

    def _copy(self) -> None:
        names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            source, target = ROOT / name, self.folder / name
            if source.exists() or source.is_symlink():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        # `make` finds the programs of this run in an environment that looks newer than its lock, and installs nothing.
        environment = self.folder / ".venv"
        environment.mkdir()
        for part in (ROOT / ".venv").iterdir():
            if part.name != ".ready":
                (environment / part.name).symlink_to(part)
        (environment / ".ready").touch()

    def path(self, without: str = "") -> str:
        """Return PATH; `without` a program, as on a machine that lacks it."""
        folders = [self._programs, *map(Path, self.env["PATH"].split(":"))]
        if not without:
            return ":".join(map(str, folders))
        bare = self.folder.parent / f"without-{without}"
        bare.mkdir(exist_ok=True)
        for folder in reversed(folders):
            for program in folder.iterdir() if folder.is_dir() else ():
                if program.name not in {without, "docker", "podman", "kind"}:
                    with contextlib.suppress(FileExistsError):
                        (bare / program.name).symlink_to(program.resolve())
        return str(bare)

    def run(self, text: str, *, without: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", text],
            cwd=self.folder,
            env={**self.env, "PATH": self.path(without)},
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )

    @contextlib.contextmanager
    def started(self, text: str) -> Iterator[subprocess.Popen[str]]:
        """Run a command that does not end by itself."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec {text}"],
            cwd=self.folder,
            env={**self.env, "PATH": self.path()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            process.terminate()
            process.communicate()


def problem(shell: Shell, row: Command) -> str:
    """Run one row. Returns what is wrong, or an empty text."""
    if row.before and shell.run(row.before).returncode != 0:
        return f"{row.before} failed"
    return _CHECKS.get(row.expect, _exits)(shell, row)


def _exits(shell: Shell, row: Command) -> str:
    code = int(row.expect.removeprefix("exit ")) if row.expect != "ok" else 0
    done = shell.run(row.text)
    is_right = done.returncode == code and row.prints in done.stdout + done.stderr
    return "" if is_right else f"exit code {done.returncode}: {(done.stdout + done.stderr)[-500:]}"


def _is_replaced(_: Shell, row: Command) -> str:
    return "" if row.reason else "no reason"


def _streams(shell: Shell, row: Command) -> str:
    with shell.started(row.text) as process:
        assert process.stdout is not None
        return "" if any(row.prints in line for line in process.stdout) else "ended without the expected line"


def _names_missing_tool(shell: Shell, row: Command) -> str:
    done = shell.run(row.text, without=row.tool)
    named = [line for line in done.stderr.splitlines() if line.startswith(f"{row.tool} is not on PATH: ")]
    return "" if done.returncode != 0 and len(named) == 1 and "Traceback" not in done.stderr else done.stderr[-500:]


def _plans(shell: Shell, row: Command) -> str:
    done = shell.run(f"make -n {row.make}")
    return "" if done.returncode == 0 else done.stderr[-500:]


def _forwards(shell: Shell, row: Command) -> str:
    # Any free port of this machine instead of the one in the document.
    text = re.sub(r"\b\d+:(\d+)\b", r":\1", row.text)
    with shell.started(text) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if found := _LOCAL_PORT.search(line):
                with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}{row.path}", timeout=60) as reply:
                    return "" if row.prints in reply.read().decode() else "another answer"
    return "no port was opened"


_CHECKS = {
    "forwards": _forwards,
    "missing": _names_missing_tool,
    "plan": _plans,
    "replaced": _is_replaced,
    "streams": _streams,
}


@pytest.fixture(scope="module")
def shell(plane: Cluster, binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(plane.binaries, binary, tmp_path_factory.mktemp("shell"), plane.kubeconfig)


@pytest.fixture
def bare_shell(binary: Path, tmp_path: Path) -> Shell:
    """A shell on a machine without a cluster."""
    cache = build.cache_folder(os.environ)
    deps = build.BuildDependencies(env=os.environ, cache=cache, report=print, sleep=time.sleep)
    return Shell(binaries.locate(deps), binary, tmp_path)


def run_rows(shell: Shell, rows: list[Command]) -> None:
    found = {f"{row.seed}:{row.line} {row.run}": problem(shell, row) for row in rows}
    wrong = [f"{name}: {what}" for name, what in found.items() if what]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("place", "needs_cluster"),
    [
        pytest.param("bare_shell", False, id="machine"),
        pytest.param("shell", True, id="cluster"),
    ],
)
def test_commands_without_an_installation_do_as_the_table_says(request, place, needs_cluster):
    shell = request.getfixturevalue(place)
    if needs_cluster:
        remove_crds(request.getfixturevalue("plane"))
    run_rows(shell, [row for row in ROWS if not row.preset and row.needs_cluster == needs_cluster])
    counted = Counter(row.expect.partition(" ")[0] for row in ROWS)
    sys.stdout.write(f"{len(ROWS)} commands of the five documents: {dict(counted)}\n")


@pytest.mark.parametrize("preset", sorted({row.preset for row in ROWS if row.preset}))
def test_commands_with_an_installation_do_as_the_table_says(plane, binary, shell, preset):
    one = release(plane, binary, preset)
    one.install(*SMALL, "--set=testing.mockModal=true")
    try:
        run_rows(shell, [row for row in ROWS if row.preset == preset])
    finally:
        for sample in ("my-gpu-job", "gpu-training"):
            plane.kubectl("delete", "job,pod", sample, "--ignore-not-found", TIMEOUT)
        plane.kubectl("delete", "modeldeployments,modalendpoints", "--all", "-A", TIMEOUT)
        one.helm("uninstall", one.preset.release, "--no-hooks", "--wait")
        if one.preset.namespace != "kube-system":
            ok(plane, "delete", "namespace", one.preset.namespace, "ml-jobs", "--ignore-not-found", TIMEOUT)
        ok(plane, "delete", "secret", "runpod-controller-secrets", "-n", "kube-system", "--ignore-not-found")
        remove_leftovers(plane)


def test_table_names_presets_and_documents_that_exist():
    names = {preset.name for preset in helm.PRESETS}
    assert {row.preset for row in ROWS} - names == {""}
    assert {row.seed for row in ROWS} == {"000", "001", "002", "003", "004"}
