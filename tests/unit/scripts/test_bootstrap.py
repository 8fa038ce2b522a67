"""The bootstrap with a stand-in for python and for uv, which write down how they were called."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

PYTHON = """#!/bin/sh
echo "$0 $*" >> {calls}
case "$*" in
  "-m venv --clear --without-pip "*) {without_pip} ;;
  "-m venv --clear "*) mkdir -p {venv}/bin; cp $0 {venv}/bin/python; {ensurepip} ;;
  "-m pip --version") case $0 in {venv}/*) {own_pip} ;; *) {machines_pip} ;; esac ;;
  *" install "*) cp {uv} {venv}/bin/uv ;;
esac
"""
UV = """#!/bin/sh
echo "$0 $*" >> {calls}
[ "$1" != --version ] || echo "uv {version}"
"""


class Machine:
    """A checkout, and a python with the habits of some distribution."""

    def __init__(self, folder: Path, *, ensurepip: bool, machines_pip: bool) -> None:
        lock = (ROOT / "requirements-dev.lock").read_text()
        (folder / "requirements-dev.lock").write_text(lock)
        version = next(line.split()[0].removeprefix("uv==") for line in lock.splitlines() if line.startswith("uv=="))
        self.folder, self.venv, self._calls = folder, folder / ".venv", folder / "calls"
        self.python = folder / "python3"
        words = {"calls": self._calls, "venv": self.venv, "uv": folder / "uv", "version": version}
        made = f"mkdir -p {self.venv}/bin; cp $0 {self.venv}/bin/python"
        has = {True: "true", False: "exit 1"}
        words |= {"ensurepip": has[ensurepip], "own_pip": has[ensurepip], "machines_pip": has[machines_pip]}
        for path, text in ((self.python, PYTHON), (folder / "uv", UV)):
            path.write_text(text.format(without_pip=made, **words))
            path.chmod(0o755)

    def bootstrap(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", str(ROOT / "scripts" / "bootstrap"), str(self.python), str(self.venv)],
            cwd=self.folder,
            env={**os.environ, "VIRTUAL_ENV": "/somewhere/else", "CONDA_PREFIX": "/somewhere/else"},
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self, word: str) -> list[str]:
        return [line for line in self._calls.read_text().splitlines() if word in line]


@pytest.mark.parametrize(("ensurepip", "machines_pip"), [(True, False), (False, True)])
def test_uv_is_installed_by_its_hash_and_always_told_which_environment_it_works_on(tmp_path, ensurepip, machines_pip):
    machine = Machine(tmp_path, ensurepip=ensurepip, machines_pip=machines_pip)
    done = machine.bootstrap()
    assert done.returncode == 0, done.stderr
    (install,) = machine.calls("--disable-pip-version-check")
    assert "--require-hashes" in install
    assert ensurepip or f"--python {machine.venv}/bin/python install" in install
    locked = (machine.venv / "uv.lock").read_text().splitlines()
    assert locked[0].startswith("uv==")
    assert all(line.startswith(("    --hash=sha256:", "    #")) for line in locked[1:])
    assert len(locked) > 2
    calls = machine.calls("bin/uv pip ")
    assert len(calls) == 2
    assert all(f" --python {machine.venv}/bin/python " in call for call in calls)


def test_a_second_run_keeps_the_environment(tmp_path):
    machine = Machine(tmp_path, ensurepip=True, machines_pip=False)
    machine.bootstrap()
    machine.bootstrap()
    assert len(machine.calls("-m venv")) == 1


def test_without_any_pip_the_package_is_named_and_no_half_environment_stays(tmp_path):
    machine = Machine(tmp_path, ensurepip=False, machines_pip=False)
    done = machine.bootstrap()
    assert done.returncode == 2
    assert "sudo apt install python3-venv" in done.stderr
    assert not machine.venv.exists()
