"""The images of model servers install from locks with hashes, and these hold what the tests were run with."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts.extra_requirements import requirements

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = (ROOT / "inference/Dockerfile").read_text()
LOCKS = sorted((*ROOT.glob("*.lock"), *ROOT.glob("inference/*.lock")))
EXTRAS = ("fastapi-onnx", "fastapi-pytorch")
# The image installs both locks in one run, so no package may have two versions.
FETCH = ROOT / "inference/fetch.lock"
_PINNED = re.compile(r"^([a-z0-9-]+)==([^ ;\\]+)(?: ; ([^\\]+))? \\$")


def pins(lock: Path) -> dict[tuple[str, str], str]:
    """Versions by name and marker. Every line of a lock is a pin, one of its hashes or a comment."""
    found = {}
    for line in lock.read_text().splitlines():
        if line.startswith(("#", "    #", "    --hash=sha256:")):
            continue
        pinned = _PINNED.fullmatch(line)
        assert pinned is not None, f"{lock.name}: {line!r} is not pinned with hashes: run `make lock`"
        found[pinned[1], pinned[3] or ""] = pinned[2]
    return found


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_lock_holds_what_its_extra_requires(extra):
    versions: dict[str, list[str]] = {}
    for (name, _), version in pins(ROOT / f"inference/{extra}.lock").items():
        versions.setdefault(name, []).append(version)
    for line in requirements(extra):
        wanted = Requirement(line)
        assert versions.get(wanted.name), f"{line} is not in inference/{extra}.lock: run `make lock`"
        assert all(wanted.specifier.contains(version) for version in versions[wanted.name]), line


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_lock_names_the_versions_that_are_tested(extra):
    tested = pins(ROOT / "requirements-dev.lock")
    names = {name for name, _ in tested}
    locked = {key: version for key, version in pins(ROOT / f"inference/{extra}.lock").items() if key[0] in names}
    assert {"fastapi", "numpy", "onnxruntime", "uvicorn"} <= {name for name, _ in locked}
    known = {name: {version for (each, _), version in tested.items() if each == name} for name in names}
    assert [key for key, version in locked.items() if version not in known[key[0]]] == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_lock_has_hashes_and_says_how_it_is_made(lock):
    text = lock.read_text()
    assert text.splitlines()[1] == "#    make lock", "no path of the machine that wrote it"
    assert len(re.findall(r"^[a-z0-9].* \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)) == len(pins(lock)) > 0


def test_the_image_installs_wheels_from_the_lock_with_hashes_and_nothing_else():
    installs = re.findall(r"(?:pip|uv) .*?install(?:.*\\\n)*.*", DOCKERFILE)
    assert len(installs) == 1
    assert {"--require-hashes", "--only-binary", "-r"} <= set(installs[0].split())
    assert re.findall(r"-r (\S+)", installs[0]) == ["/build/requirements.lock", "/build/fetch.lock"]
    assert "ARG LOCK=inference/${WITH}.lock" in DOCKERFILE
    assert "pyproject.toml" not in DOCKERFILE


@pytest.mark.parametrize("extra", EXTRAS)
def test_image_with_download_program_has_one_version_of_each_package(extra):
    server, fetch = pins(ROOT / f"inference/{extra}.lock"), pins(FETCH)
    shared = server.keys() & fetch.keys()
    assert "msgspec" in {name for name, _ in shared}
    assert [key for key in shared if server[key] != fetch[key]] == []
    assert "COPY inference/fetch.lock /build/fetch.lock" in DOCKERFILE


def test_image_lets_its_user_write_the_model_that_it_downloads():
    assert DOCKERFILE.index("chown 65532:65532 /mnt\n") < DOCKERFILE.index("USER 65532\n")


def test_make_lock_writes_every_lock():
    recipe = (ROOT / "Makefile").read_text().partition("\nlock:")[2].partition("\n\n")[0]
    made = set(re.findall(r"-o (\S+\.lock)", recipe))
    assert made == {str(path.relative_to(ROOT)) for path in LOCKS}


def test_extras_are_printed_with_those_that_they_name():
    printed = [
        subprocess.run(
            [sys.executable, "-m", "scripts.extra_requirements", extra], cwd=ROOT, check=True, capture_output=True
        ).stdout.decode()
        for extra in EXTRAS
    ]
    assert printed[1].startswith(printed[0])
    assert "torch>=" in printed[1]
    assert "skysail[" not in printed[1]
