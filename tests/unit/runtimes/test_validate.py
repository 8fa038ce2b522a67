"""The launcher of validation scripts, by itself: where it looks, in which order, and what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from skysail.runtimes import validate

_PLACES = ("image/checks", "config", "tools/script")


def _run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    for folder in _PLACES:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    launcher = tmp_path / "tools/validate.py"
    launcher.write_bytes(Path(validate.__file__).read_bytes())
    environment = {"VALIDATE_CONFIG_MAP": str(tmp_path / "config"), "TERMINATION_LOG": str(tmp_path / "log")}
    return subprocess.run(
        [sys.executable, "-I", launcher, *arguments],
        cwd=tmp_path / "image",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _put(tmp_path: Path, folder: str, name: str = "check.py") -> None:
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / folder / name).write_text(f"import sys; print({folder!r}, sys.argv[1:]); sys.exit(37)")


@pytest.mark.parametrize("first", range(3))
def test_the_image_comes_before_the_configmap_and_that_before_what_was_downloaded(tmp_path: Path, first):
    for folder in _PLACES[first:]:
        _put(tmp_path, folder)
    run = _run(tmp_path, "checks/check.py", "--strict")

    assert run.returncode == 37, run.stderr
    assert run.stdout.splitlines()[-1] == f"{_PLACES[first]} ['--strict']"


@pytest.mark.parametrize("absolute", [True, False])
def test_a_path_is_taken_as_it_is_and_below_the_working_directory(tmp_path: Path, absolute):
    _put(tmp_path, "image/checks")
    script = str(tmp_path / "image/checks/check.py") if absolute else "/checks/check.py"

    assert _run(tmp_path, script).returncode == 37


def test_the_script_of_an_address_is_the_one_that_was_downloaded(tmp_path: Path):
    _put(tmp_path, "tools/script", "my check.py")

    assert _run(tmp_path, "https://example.com/a/my%20check.py?token=hunter2").returncode == 37


@pytest.mark.parametrize("arguments", [("check.py",), ("https://me:hunter2@example.com/check.py?token=hunter2",), ()])
def test_a_script_that_is_nowhere_is_told_with_the_places(tmp_path: Path, arguments):
    run = _run(tmp_path, *arguments)
    message = json.loads((tmp_path / "log").read_text())

    assert run.returncode == 78
    assert (message["step"], message["reason"]) == ("Validate", "ScriptNotFound")
    assert message["message"] in run.stderr
    assert str(tmp_path / "config") in run.stderr
    assert "hunter2" not in run.stderr


def test_the_launcher_needs_the_standard_library_only():
    lines = Path(validate.__file__).read_text().splitlines()
    imported = {line.split()[1].partition(".")[0] for line in lines if line.startswith(("import ", "from "))}

    assert imported <= sys.stdlib_module_names
