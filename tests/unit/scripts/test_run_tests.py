"""Rerun of a few failed tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[3]
_FIRST = """
import pathlib, pytest

@pytest.mark.parametrize("number", range({number}))
def test_first(number):
    mark = pathlib.Path(f"seen-{{number}}")
    seen = mark.exists()
    mark.touch()
    assert seen

def test_good():
    pass
"""


def _run(folder: Path, test: str) -> subprocess.CompletedProcess:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(test)
    command = [sys.executable, "-m", "scripts.run_tests", "-q"]
    environment = {"PYTHONPATH": str(_ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_run_tests_two_tests_pass_in_the_rerun_exits_with_0_and_names_them(tmp_path: Path):
    result = _run(tmp_path, _FIRST.format(number=2))
    assert result.returncode == 0, result.stdout
    assert result.stdout.endswith(
        "Passed only in the rerun, fix them:\n  test_it.py::test_first[0]\n  test_it.py::test_first[1]\n"
    )


def test_run_tests_seven_tests_fail_does_not_rerun_them(tmp_path: Path):
    result = _run(tmp_path, _FIRST.format(number=7))
    assert result.returncode == 1
    assert "7 failed, 1 passed" in result.stdout
    assert "Rerunning" not in result.stdout


def test_run_tests_test_fails_twice_exits_with_1(tmp_path: Path):
    result = _run(tmp_path, "def test_never():\n    assert False\n")
    assert result.returncode == 1
    assert "Rerunning failed tests:\n  test_it.py::test_never" in result.stdout


def test_run_tests_collection_error_does_not_rerun(tmp_path: Path):
    result = _run(tmp_path, "import nothing_of_that_name\n")
    assert result.returncode != 0
    assert "Rerunning" not in result.stdout
