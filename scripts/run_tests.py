"""Run pytest, then rerun the few tests that failed: `python -m scripts.run_tests ...`.

The last lines name the tests that passed only in the second run: the run is green, but these tests must be fixed.
See docs/adr/0009-rerun-failed-tests-once.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

# More failures than this are hardly a coincidence, and are not rerun.
_MAX_RERUNS = 6
_LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main(arguments: Sequence[str]) -> int:
    """Run the tests, rerun a few failed ones, and return the exit code."""
    code = _pytest("--cache-clear", *arguments)
    if code != pytest.ExitCode.TESTS_FAILED:
        return code
    failed = sorted(json.loads(_LAST_FAILED.read_text()))
    if len(failed) > _MAX_RERUNS:
        return code
    _print_tests("Rerunning failed tests:", failed)
    code = _pytest(*failed)
    if code == pytest.ExitCode.OK:
        _print_tests("Passed only in the rerun, fix them:", failed)
    return code


def _pytest(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode  # noqa: S603


def _print_tests(title: str, tests: Sequence[str]) -> None:
    sys.stdout.write("\n".join([title, *(f"  {test}" for test in tests), ""]))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
