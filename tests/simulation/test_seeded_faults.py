"""The suite can fail: each guard of the launch protocol is taken away once, and a named test must notice.

A patch begins with the test that judges it, and with the words that the test must say.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

_ROOT = Path(__file__).parents[2]
_PATCHES = sorted((Path(__file__).parent / "seeded").glob("*.patch"))


class Seed(msgspec.Struct, frozen=True):
    patch: Path
    test: str
    words: str

    @classmethod
    def read(cls, patch: Path) -> Seed:
        test, words = patch.read_text().splitlines()[:2]
        return cls(patch, test.removeprefix("test: "), words.removeprefix("says: "))


def test_there_are_thirteen() -> None:
    assert len(_PATCHES) == 13


@pytest.mark.parametrize("patch", _PATCHES, ids=lambda patch: patch.stem)
def test_a_seeded_fault_is_found(patch: Path, tmp_path: Path) -> None:
    seed = Seed.read(patch)
    shutil.copytree(_ROOT / "src" / "skysail", tmp_path / "src" / "skysail")
    applied = subprocess.run(
        ["git", "apply", "--verbose", str(patch)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert applied.returncode == 0, applied.stderr
    result = _judged(tmp_path / "src", seed.test)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.stdout
    assert seed.words in result.stdout


def test_without_a_fault_the_same_tests_pass(tmp_path: Path) -> None:
    shutil.copytree(_ROOT / "src" / "skysail", tmp_path / "src" / "skysail")
    result = _judged(tmp_path / "src", *dict.fromkeys(Seed.read(patch).test for patch in _PATCHES))
    assert result.returncode == pytest.ExitCode.OK, result.stdout


def _judged(source: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    """By a process that imports Skysail from there."""
    where = {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-vv", "-x", "-p", "no:cacheprovider", "--no-header", *tests],
        cwd=_ROOT,
        env={**os.environ, **where},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
