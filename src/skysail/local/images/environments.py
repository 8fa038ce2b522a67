"""Environments built by uv: one folder per set of packages and Python, shared by all images and pods."""

from __future__ import annotations

import asyncio
import hashlib
import shlex
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import msgspec

from skysail.local.control_plane.build import cache_folder
from skysail.local.errors import BuildFailed, VersionUnavailable
from skysail.local.images.builder import Builder, Made, base_python, installed_version, made_at, versions_of
from skysail.local.images.loaded_images import LoadedImage, LoadedImages
from skysail.local.images.rules import CopiedDir, Rule, Rules, locked
from skysail.local.images.single_flight import Report, Shared

# Each version of PyTorch is gigabytes, and tags come from tenants.
_MAX_ENVIRONMENTS = 40
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Files and variables of an image for a container.

    `folders` must be mounted at their own paths, because scripts contain those paths.
    """

    folders: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    default_args: tuple[str, ...] = ()
    copied: tuple[CopiedDir, ...] = ()
    warning: str = ""  # about a version that the image names, and that the environment does not have
    python: str = ""  # version; empty if the image uses the machine's own programs
    loaded: LoadedImage | None = None  # an image with its own root, in which nothing of the machine is visible

    @property
    def env(self) -> dict[str, str]:
        if self.loaded is not None:
            return {"PATH": _SYSTEM_PATH, **dict(self.loaded.program.variables)}
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

    def __init__(self, rules: Rules, builder: Builder, loaded_images: LoadedImages) -> None:
        self._rules = rules
        self._builder = builder
        self._loaded_images = loaded_images
        self._builds: Shared[Made] = Shared()
        self._unavailable: set[str] = set()

    async def find(self, image: str, report: Report) -> Environment | None:
        """Return the environment of an image, built if necessary.

        A loaded image takes precedence over all rules. Returns None if the image is not loaded and no rule matches it.
        Raises BuildFailed.
        """
        loaded = await asyncio.to_thread(self._loaded_images.find, image)
        if loaded is not None:
            program = loaded.program
            return Environment(entrypoint=program.entrypoint or (), default_args=program.cmd or (), loaded=loaded)
        rule = self._rules.find(image)
        if rule is None:
            return None
        try:
            return await self._make_tagged(rule, image, report)
        except BuildFailed as error:
            # A terminal reaches the index directly, but a local cluster only through the egress proxy.
            raise BuildFailed(f"{error} Try it at a terminal: `{_command(rule)}`.") from error

    async def _make_tagged(self, rule: Rule, image: str, report: Report) -> Environment:
        """Return the environment with the version that the tag names, or else another one with a warning."""
        exact = rule.for_tag(image)
        path = str(self.path(exact))
        if exact != rule and path not in self._unavailable:
            if not self.is_made(exact) and self._count() >= _MAX_ENVIRONMENTS:
                reason = f"this machine keeps {_MAX_ENVIRONMENTS} environments; `skysail image rm` removes some"
                return await self._make_other(rule, image, reason, report)
            try:
                return await self.make(exact, report)
            except VersionUnavailable:
                self._unavailable.add(path)
        if exact == rule:
            return await self.make(rule, report)
        return await self._make_other(rule, image, "the package index has no such version for this Python", report)

    async def _make_other(self, rule: Rule, image: str, reason: str, report: Report) -> Environment:
        found = await self.make(rule, report)
        version = installed_version(self.path(rule), rule.versioned)
        warning = f"Image {image} runs with {rule.versioned} {version} on this machine: {reason}."
        return msgspec.structs.replace(found, warning=warning)

    def _count(self) -> int:
        return sum(1 for _ in self._builder.folder.glob("*/skysail.json"))

    async def make(self, rule: Rule, report: Report) -> Environment:
        """Return the environment of a rule, and build it if necessary. Raises BuildFailed with the output of uv.

        Concurrent callers share one build. It is cancelled when the last of them stops waiting.
        """
        if rule.packages is None:
            return _furnished(rule)
        path = self.path(rule)
        made = made_at(path) or await self._builds.run(str(path), partial(self._builder.build, path, rule), report)
        return msgspec.structs.replace(_furnished(rule, str(path), made.base), python=made.version)

    def in_use(self, loaded: LoadedImage) -> AbstractContextManager[None]:
        """Keep a loaded image until the end of the block. Raises OSError if it was removed."""
        return self._loaded_images.in_use(loaded)

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
    builder = Builder(cache_folder(env) / "environments", env)
    return rules, Environments(rules, builder, open_loaded_images(home))


def open_loaded_images(home: Path) -> LoadedImages:
    """Open the images of a home that were loaded from files."""
    return LoadedImages(home / "loaded-images")


def _command(rule: Rule) -> str:
    """Return the command that replaces this rule, with all of its options."""
    options = [
        ("--with", ",".join(rule.packages or ())),
        ("--python", rule.python),
        ("--entrypoint", shlex.join(rule.entrypoint)),
        ("--cmd", shlex.join(rule.default_args)),
        *(("--copy", f"{copied_dir.source}:{copied_dir.target}") for copied_dir in rule.copied),
    ]
    words = [word for option, value in options if value for word in (option, value)]
    return shlex.join(("skysail", "image", "add", rule.pattern, *words))


def _is_python(program: Path) -> bool:
    if program.name.startswith(("python", "pip")):
        return True
    with program.open("rb") as file:
        first = file.readline(200)
    return first.startswith(b"#!") and b"python" in first


def _furnished(rule: Rule, *folders: str) -> Environment:
    return Environment(folders=folders, entrypoint=rule.entrypoint, default_args=rule.default_args, copied=rule.copied)
