"""Makes one environment with uv. What is broken off leaves nothing that looks finished, and mostly nothing at all.

The versions that were found the first time stay, with their hashes, beside the environment: one that has to be made
anew, because its disk was cleaned or its making broken off, is the same again.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from skysail.local.errors import BuildFailed
from skysail.local.images.build_progress import Progress
from skysail.local.images.rules import Rule
from skysail.local.images.single_flight import Say

_MAX_REASON_LENGTH = 400
_MAX_LINE_BYTES = 1024 * 1024
_POLL_SECONDS = 0.1
# A source distribution would run its author's code outside of any box.
_WHEELS_ONLY = ("--only-binary", ":all:")
_INFO = "import sys, platform; print(sys.base_prefix); print(platform.python_version())"
# Would keep bytecode from being written; colours are for terminals.
_MISLEADING = ("PYTHONDONTWRITEBYTECODE", "FORCE_COLOR", "CLICOLOR_FORCE")


class Made(msgspec.Struct, frozen=True):
    """Written last, so it tells that an environment is whole."""

    base: str
    version: str


def made_at(path: Path) -> Made | None:
    try:
        return msgspec.json.decode((path / "skysail.json").read_bytes(), type=Made)
    except (FileNotFoundError, msgspec.DecodeError):  # half of it may be all that a full disk took
        return None


def versions_of(path: Path) -> Path:
    """Of an environment: the version and the hashes of each of its packages, as uv reads them."""
    return path.with_suffix(".txt")


def base_python() -> str:
    """The interpreter that we run on ourselves, not our own environment."""
    return os.path.realpath(sys.executable)


class Builder:
    """All environments are in one folder. `env` is uv's: where its index is, and the way there."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder = folder
        self._env = {name: value for name, value in env.items() if name not in _MISLEADING}

    async def build(self, path: Path, rule: Rule, say: Say) -> Made:
        """Returns at once where another process made it meanwhile. Raises BuildFailed with uv's words."""
        self.folder.mkdir(parents=True, exist_ok=True)
        async with _turn(path.with_suffix(".lock"), say) as lock:
            made = made_at(path)
            if made is not None:
                return made
            had_versions = versions_of(path).exists()
            try:
                return await self._build(path, rule, say, lock)
            except BaseException:
                await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
                if not had_versions:
                    versions_of(path).unlink(missing_ok=True)
                raise

    async def _build(self, path: Path, rule: Rule, say: Say, lock: int) -> Made:
        uv = self._find_uv()
        await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)  # of one whose process was killed
        say(f"making the environment for {rule.pattern} ({', '.join(rule.packages or ()) or 'no packages'})")
        # No download of an interpreter behind anybody's back.
        python = rule.python or base_python()
        venv = [uv, "venv", "--quiet", "--no-python-downloads", "--python", python, str(path)]
        await self._run(venv, say, lock)
        interpreter = str(path / "bin" / "python")
        if rule.packages:
            versions = versions_of(path)
            if not versions.exists():
                await self._choose(uv, interpreter, rule.packages, versions, say, lock)
            # Bytecode is compiled now: the environment is read-only in a box, and each start would compile anew.
            options = (*_WHEELS_ONLY, "--compile-bytecode", "--require-hashes", "--python", interpreter)
            await self._run([uv, "pip", "install", "--no-progress", *options, "-r", str(versions)], say, lock)
        base, version = (await self._run([interpreter, "-c", _INFO], say, lock)).split()
        made = Made(base, version)
        (path / "skysail.json.new").write_bytes(msgspec.json.encode(made))
        (path / "skysail.json.new").replace(path / "skysail.json")
        say(f"the environment for {rule.pattern} is ready (Python {version})")
        return made

    async def _choose(
        self, uv: str, interpreter: str, packages: Sequence[str], versions: Path, say: Say, lock: int
    ) -> None:
        """Which version of each package, and of all that these need."""
        desired, found = versions.with_suffix(".in"), versions.with_suffix(".new")
        desired.write_text(_requirements(packages))
        try:
            options = (*_WHEELS_ONLY, "--generate-hashes", "--no-header", "--no-annotate", "--python", interpreter)
            await self._run(
                [uv, "pip", "compile", "--no-progress", *options, "-o", str(found), str(desired)], say, lock
            )
            found.replace(versions)
        finally:
            desired.unlink()
            found.unlink(missing_ok=True)

    async def _run(self, argv: list[str], say: Say, lock: int) -> str:
        """What it prints. Its own children hold the lock too, so whoever comes after a crash of ours waits for them."""
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=self.folder,  # uv reads the settings of the project in which it stands
            env=self._env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_MAX_LINE_BYTES,
            pass_fds=(lock,),
            umask=0o022,  # programs of pods have other ids than ours, and must be able to read the environment
        )
        try:
            assert process.stderr is not None, "it was asked for"
            assert process.stdout is not None, "it was asked for"
            words = await _listen(process.stderr, say)
            printed = await process.stdout.read()
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if code != 0:
            raise BuildFailed(f"The environment could not be made: {words[-_MAX_REASON_LENGTH:]}.")
        return printed.decode()

    def _find_uv(self) -> str:
        found = shutil.which("uv", path=f"{Path(sys.executable).parent}:{self._env.get('PATH', '')}")
        if found is None:
            raise BuildFailed("Environments are made by uv, which is missing here: `pip install uv`.")
        return found


def _requirements(packages: Sequence[str]) -> str:
    """Return a file with one package per line. Raises BuildFailed for a name that uv would read as something else."""
    for name in packages:
        if name.lstrip().startswith(("-", "#")) or not name.isprintable():
            raise BuildFailed(f"{name!r} is not the name of a package: correct the rule with `skysail image add`.")
    return "\n".join(packages)


async def _listen(stream: asyncio.StreamReader, say: Say) -> str:
    progress, words = Progress(), []
    async for raw in stream:
        line = raw.decode(errors="replace")
        if step := progress.heard(line):
            say(step)
        elif not line.startswith("Using Python"):
            words.extend(line.split())
    return " ".join(words).removesuffix(".")


@asynccontextmanager
async def _turn(path: Path, say: Say) -> AsyncIterator[int]:
    """One builder at a time, over all processes. Tried again and again: a thread that waits could not be cancelled."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    is_reported = False
    try:
        while not _take(descriptor):
            if not is_reported:
                say("another process makes this environment; waiting for it")
            is_reported = True
            await asyncio.sleep(_POLL_SECONDS)
        yield descriptor
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
