"""Python packages of the images: locked wheels, our own wheel, and its entry points."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec

from scripts.image.errors import BuildError

FOLDER = "opt/skysail"
_VERSION = (3, 11)
_PLATFORM = "x86_64-manylinux_2_28"
# Written by the installation, with folders of this machine or hashes of files that have them: only pip reads these.
_OF_THIS_MACHINE = ("RECORD", "direct_url.json", "uv_cache.json")
_SCRIPT = """#!/usr/bin/python3
import sys

from {module} import {function}

sys.exit({function}())
"""


class LockedPackage(msgspec.Struct, frozen=True):
    name: str
    version: str
    hashes: tuple[str, ...]


def build_wheel(source: Path, folder: Path, epoch: int) -> Path:
    """Build our wheel. The same source gives the same bytes. Raises BuildError."""
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    _uv("build", "--wheel", "--quiet", "--out-dir", str(folder), str(source), env=env)
    return next(folder.glob("*.whl"))


def install(root: Path, lock: Path, *, wheel: Path | None, without: tuple[str, ...] = ()) -> None:
    """Install the wheels of a lock file, with their hashes checked, and our own. Raises BuildError."""
    target = root / FOLDER
    wheels_only = ("--only-binary", ":all:", "--python-version", "3.11", "--python-platform", _PLATFORM)
    into = ("--target", str(target), "--no-deps", "--quiet", "--link-mode", "copy")
    _uv("pip", "install", *into, *wheels_only, "--require-hashes", "-r", str(lock))
    if wheel is not None:
        _uv("pip", "install", *into, *wheels_only, str(wheel))
    # Scripts name the Python of this machine, and `.lock` is uv's own.
    shutil.rmtree(target / "bin", ignore_errors=True)
    (target / ".lock").unlink(missing_ok=True)
    for name in _OF_THIS_MACHINE:
        for file in target.glob(f"*.dist-info/{name}"):
            file.unlink()
    for tests in [path for path in target.rglob("tests") if path.is_dir()]:
        shutil.rmtree(tests, ignore_errors=True)
    for name in without:
        shutil.rmtree(target / name, ignore_errors=True)
        for info in target.glob(f"{name}-*.dist-info"):
            shutil.rmtree(info)


def write_entry_points(root: Path, wheel: Path) -> list[str]:
    """Write a script for each entry point of the wheel. Returns their names."""
    parser = configparser.ConfigParser()
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt"))
        parser.read_string(archive.read(name).decode())
    folder = root / FOLDER / "bin"
    folder.mkdir(parents=True)
    for script, target in parser["console_scripts"].items():
        module, _, function = target.partition(":")
        (folder / script).write_text(_SCRIPT.format(module=module, function=function))
        (folder / script).chmod(0o755)
    return sorted(parser["console_scripts"])


def compile_bytecode(root: Path) -> bool:
    """Compile all modules, because the root is read-only at run time. Returns False with another Python than 3.11."""
    if sys.version_info[:2] != _VERSION:
        return False
    folders = (str(root / FOLDER), str(root / "usr/lib/python3.11"))
    paths = ("-s", str(root), "-p", "/", "-r", "50")
    command = [sys.executable, "-m", "compileall", "-q", "-q", "-j", "2", *paths]
    # The order of sets in constants follows the hash seed, so that it has to be fixed for the same bytes.
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    subprocess.run([*command, "--invalidation-mode", "unchecked-hash", *folders], check=False, env=env)  # noqa: S603 (our own Python)
    return True


def locked_packages(lock: Path) -> list[LockedPackage]:
    """Return the packages of a lock file that fit the image."""
    found: list[LockedPackage] = []
    lines = lock.read_text().replace("\\\n", " ").splitlines()
    for line in lines:
        words = line.split()
        if not words or words[0].startswith("#") or "==" not in words[0]:
            continue
        if "sys_platform == 'win32'" in line:
            continue
        name, _, version = words[0].partition("==")
        hashes = tuple(word.removeprefix("--hash=sha256:") for word in words if word.startswith("--hash=sha256:"))
        found.append(LockedPackage(name.partition("[")[0], version, hashes))
    return found


def _uv(*words: str, env: dict[str, str] | None = None) -> None:
    uv = Path(sys.executable).with_name("uv")
    done = subprocess.run([uv, *words], capture_output=True, text=True, check=False, env=env)  # noqa: S603 (our own uv)
    if done.returncode != 0:
        raise BuildError(f"uv {' '.join(words[:2])} failed: {done.stderr.strip()[-1000:]}")
