"""A few tests that fail are run once more, and told."""

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


def test_what_passes_at_the_second_time_is_named_and_holds_nobody_up(tmp_path: Path):
    result = _run(tmp_path, _FIRST.format(number=2))
    assert result.returncode == 0, result.stdout
    assert result.stdout.endswith("to be mended:\n  test_it.py::test_first[0]\n  test_it.py::test_first[1]\n")


def test_more_than_a_few_failures_are_no_chance(tmp_path: Path):
    result = _run(tmp_path, _FIRST.format(number=4))
    assert result.returncode == 1
    assert "4 failed, 1 passed" in result.stdout
    assert "Once more" not in result.stdout


def test_what_fails_twice_is_red(tmp_path: Path):
    result = _run(tmp_path, "def test_never():\n    assert False\n")
    assert result.returncode == 1
    assert "Once more, alone:\n  test_it.py::test_never" in result.stdout


def test_what_is_no_test_gets_no_second_chance(tmp_path: Path):
    result = _run(tmp_path, "import nothing_of_that_name\n")
    assert result.returncode != 0
    assert "Once more" not in result.stdout
