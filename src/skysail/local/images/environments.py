"""Environments made by uv: one folder per set of packages and Python, made once and shared by every image and pod.

Blocking: call it in a thread. Two callers make one environment; one that was broken off is made again.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from skysail.local.errors import BuildFailed
from skysail.local.images.rules import Copied, Rule, Rules, locked

Say = Callable[[str], None]

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_STEPS = ("Resolved", "Downloading", "Prepared", "Installed", "Bytecode")
_LONGEST_REASON = 400
_INFO = "import sys, platform; print(sys.base_prefix); print(platform.python_version())"


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """What a box needs of an image. `folders` must be seen at their own paths, because scripts name them."""

    folders: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    default_args: tuple[str, ...] = ()
    copied: Copied | None = None

    @property
    def env(self) -> dict[str, str]:
        if not self.folders:
            return {"PATH": _SYSTEM_PATH}
        return {"PATH": f"{self.folders[0]}/bin:{_SYSTEM_PATH}", "VIRTUAL_ENV": self.folders[0]}

    def foreign_program(self, program: str) -> str | None:
        """The machine's own Python program that would be run because the environment has none of this name."""
        if not self.folders or "/" in program or (Path(self.folders[0]) / "bin" / program).exists():
            return None
        found = shutil.which(program, path=_SYSTEM_PATH)
        return found if found and _is_python(Path(found)) else None


class _Made(msgspec.Struct, frozen=True):
    """Written last, so it tells that an environment is whole."""

    base: str
    version: str


class Environments:
    def __init__(self, rules: Rules, folder: Path, env: Mapping[str, str]) -> None:
        self._rules = rules
        self._folder = folder
        self._env = env

    def find(self, image: str, say: Say) -> Environment | None:
        """The image's environment, made now if need be; None where no rule knows the image."""
        rule = self._rules.find(image)
        if rule is None:
            return None
        try:
            return self.make(rule, say)
        except BuildFailed as error:
            # A terminal has the machine's own way to the index; inside a hull there is only the filtered one.
            command = shlex.join(("skysail", "image", "add", rule.pattern, "--with", ",".join(rule.packages or ())))
            raise BuildFailed(f"{error} Try it at a terminal: `{command}`.") from error

    def make(self, rule: Rule, say: Say) -> Environment:
        """Slow the first time; at once when it is made already. Raises BuildFailed with uv's words."""
        if rule.packages is None:
            return _furnished(rule)
        path = self.path(rule)
        self._folder.mkdir(parents=True, exist_ok=True)
        made = _made(path)
        if made is None:
            with locked(path.with_suffix(".lock")):
                made = _made(path) or self._build(path, rule, say)
        return _furnished(rule, str(path), made.base)

    def is_made(self, rule: Rule) -> bool:
        return rule.packages is None or _made(self.path(rule)) is not None

    def remove(self, rule: Rule) -> None:
        """Free the disk, unless another rule has the same environment."""
        path = self.path(rule)
        others = {self.path(other) for other in self._rules.all() if other.packages is not None}
        if rule.packages is not None and path not in others:
            shutil.rmtree(path, ignore_errors=True)

    def path(self, rule: Rule) -> Path:
        packages = sorted(rule.packages or ())
        python = rule.python or _base_python()
        key = hashlib.sha256(msgspec.json.encode([packages, python])).hexdigest()[:16]
        return self._folder / key

    def _build(self, path: Path, rule: Rule, say: Say) -> _Made:
        uv = _find_uv(self._env)
        shutil.rmtree(path, ignore_errors=True)
        wanted = ", ".join(rule.packages or ()) or "no packages"
        say(f"making the environment for {rule.pattern} ({wanted})")
        # No download of an interpreter behind anybody's back.
        python = rule.python or _base_python()
        self._run([uv, "venv", "--quiet", "--no-python-downloads", "--python", python, str(path)], say)
        interpreter = path / "bin" / "python"
        if rule.packages:
            # Wheels only: a source distribution would run its author's code outside of any box. Bytecode is compiled
            # now, because the environment is read-only in a box and each start would compile anew.
            options = ("--only-binary", ":all:", "--compile-bytecode", "--python", str(interpreter))
            self._run([uv, "pip", "install", "--no-progress", *options, *rule.packages], say)
        base, version = self._ask(interpreter)
        made = _Made(base, version)
        (path / "skysail.json").write_bytes(msgspec.json.encode(made))
        say(f"the environment for {rule.pattern} is ready (Python {version})")
        return made

    def _run(self, argv: list[str], say: Say) -> None:
        env = {name: value for name, value in self._env.items() if name != "PYTHONDONTWRITEBYTECODE"}
        words: list[str] = []
        with subprocess.Popen(  # noqa: S603 (uv)
            argv,
            cwd=self._folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None, "it was asked for"
            for line in process.stderr:
                words.append(line.strip())
                if line.startswith(_STEPS):
                    say(line.strip())
        if process.returncode != 0:
            why = " ".join(word for word in words if not word.startswith("Using Python"))
            raise BuildFailed(f"The environment could not be made: {why[-_LONGEST_REASON:]}.")

    def _ask(self, interpreter: Path) -> tuple[str, str]:
        asked = subprocess.run([interpreter, "-c", _INFO], capture_output=True, text=True, check=True, env=self._env)  # noqa: S603 (just made)
        base, version = asked.stdout.splitlines()
        return base, version


def _made(path: Path) -> _Made | None:
    try:
        return msgspec.json.decode((path / "skysail.json").read_bytes(), type=_Made)
    except FileNotFoundError:
        return None


def _base_python() -> str:
    """The interpreter that we run on ourselves, not our own environment."""
    return os.path.realpath(sys.executable)


def _find_uv(env: Mapping[str, str]) -> str:
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}:{env.get('PATH', '')}")
    if found is None:
        raise BuildFailed("Environments are made by uv, which is missing here: `pip install uv`.")
    return found


def _is_python(program: Path) -> bool:
    if program.name.startswith(("python", "pip")):
        return True
    with program.open("rb") as file:
        first = file.readline(200)
    return first.startswith(b"#!") and b"python" in first


def _furnished(rule: Rule, *folders: str) -> Environment:
    return Environment(folders=folders, entrypoint=rule.entrypoint, default_args=rule.default_args, copied=rule.copied)
