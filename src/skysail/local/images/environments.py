"""Environments built by uv: one folder per set of packages and Python, shared by all images and pods."""

from __future__ import annotations

import hashlib
import shlex
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from skysail.local.control_plane.build import cache_folder
from skysail.local.errors import BuildFailed
from skysail.local.images.builder import Builder, Made, base_python, made_at, versions_of
from skysail.local.images.rules import CopiedDir, Rule, Rules, locked
from skysail.local.images.single_flight import Report, Shared

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Files and variables of an image for a container.

    `folders` must be mounted at their own paths, because scripts contain those paths.
    """

    folders: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    default_args: tuple[str, ...] = ()
    copied: CopiedDir | None = None
    python: str = ""  # version; empty if the image uses the machine's own programs

    @property
    def env(self) -> dict[str, str]:
        if not self.folders:
            return {"PATH": _SYSTEM_PATH}
        return {"PATH": f"{self.folders[0]}/bin:{_SYSTEM_PATH}", "VIRTUAL_ENV": self.folders[0]}

    def foreign_program(self, program: str) -> str | None:
        """Return the machine's Python program that would run because the environment lacks one of this name."""
        if not self.folders or "/" in program or (Path(self.folders[0]) / "bin" / program).exists():
            return None
        found = shutil.which(program, path=_SYSTEM_PATH)
        return found if found and _is_python(Path(found)) else None


class Environments:
    """Environments of this machine. All coroutines must run in one event loop."""

    def __init__(self, rules: Rules, builder: Builder) -> None:
        self._rules = rules
        self._builder = builder
        self._builds: Shared[Made] = Shared()

    async def find(self, image: str, report: Report) -> Environment | None:
        """Return the environment of an image, built if necessary. Returns None if no rule matches the image.

        Raises BuildFailed.
        """
        rule = self._rules.find(image)
        if rule is None:
            return None
        try:
            return await self.make(rule, report)
        except BuildFailed as error:
            # A terminal reaches the index directly, but a local cluster only through the egress proxy.
            raise BuildFailed(f"{error} Try it at a terminal: `{_command(rule)}`.") from error

    async def make(self, rule: Rule, report: Report) -> Environment:
        """Return the environment of a rule, and build it if necessary. Raises BuildFailed with the output of uv.

        Concurrent callers share one build. It is cancelled when the last of them stops waiting.
        """
        if rule.packages is None:
            return _furnished(rule)
        path = self.path(rule)
        made = made_at(path) or await self._builds.run(str(path), partial(self._builder.build, path, rule), report)
        return msgspec.structs.replace(_furnished(rule, str(path), made.base), python=made.version)

    def is_made(self, rule: Rule) -> bool:
        return rule.packages is None or made_at(self.path(rule)) is not None

    def remove(self, rule: Rule) -> None:
        """Delete the environment and its locked versions, unless another rule uses it."""
        path = self.path(rule)
        others = {self.path(other) for other in self._rules.all() if other.packages is not None}
        if rule.packages is None or path in others or not path.exists():
            return
        with locked(path.with_suffix(".lock")):
            shutil.rmtree(path, ignore_errors=True)
            versions_of(path).unlink(missing_ok=True)

    def path(self, rule: Rule) -> Path:
        packages = sorted(rule.packages or ())
        python = rule.python or base_python()
        key = hashlib.sha256(msgspec.json.encode([packages, python])).hexdigest()[:16]
        return self._builder.folder / key


def open_environments(home: Path, env: Mapping[str, str]) -> tuple[Rules, Environments]:
    """Open the rules of a home, and the environments, which are large and shared by all homes, in the cache."""
    rules = Rules(home / "images.json")
    return rules, Environments(rules, Builder(cache_folder(env) / "environments", env))


def _command(rule: Rule) -> str:
    """Return the command that replaces this rule, with all of its options."""
    options = {
        "--with": ",".join(rule.packages or ()),
        "--python": rule.python,
        "--entrypoint": shlex.join(rule.entrypoint),
        "--copy": f"{rule.copied.source}:{rule.copied.target}" if rule.copied else "",
    }
    errors = [word for option, value in options.items() if value for word in (option, value)]
    return shlex.join(("skysail", "image", "add", rule.pattern, *errors))


def _is_python(program: Path) -> bool:
    if program.name.startswith(("python", "pip")):
        return True
    with program.open("rb") as file:
        first = file.readline(200)
    return first.startswith(b"#!") and b"python" in first


def _furnished(rule: Rule, *folders: str) -> Environment:
    return Environment(folders=folders, entrypoint=rule.entrypoint, default_args=rule.default_args, copied=rule.copied)
