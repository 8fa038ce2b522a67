"""Build one environment with uv. An interrupted build leaves nothing that looks finished.

Package versions are resolved once and locked with hashes next to the environment. A rebuild, after a clean-up of the
disk or an interrupted build, gives the same versions.
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

from skysail.local.errors import BuildFailed, VersionUnavailable
from skysail.local.images.build_progress import Progress
from skysail.local.images.rules import Rule
from skysail.local.images.single_flight import Report

_MAX_REASON_LENGTH = 400
_MAX_LINE_BYTES = 1024 * 1024
_POLL_SECONDS = 0.1
# Building a source distribution would run its author's code outside of any sandbox.
_WHEELS_ONLY = ("--only-binary", ":all:")
_NO_SOLUTION = "No solution found"
_INFO = "import sys, platform; print(sys.base_prefix); print(platform.python_version())"
# Would suppress bytecode, or add colours that are meant for terminals.
_MISLEADING = ("PYTHONDONTWRITEBYTECODE", "FORCE_COLOR", "CLICOLOR_FORCE")


class Made(msgspec.Struct, frozen=True):
    """Description of a finished environment. Written last, so its presence marks the environment as complete."""

    base: str
    version: str


def made_at(path: Path) -> Made | None:
    try:
        return msgspec.json.decode((path / "skysail.json").read_bytes(), type=Made)
    except (FileNotFoundError, msgspec.DecodeError):  # a full disk may have truncated it
        return None


def versions_of(path: Path) -> Path:
    """Return the path of the lock file of an environment: version and hashes of each package, as uv reads them."""
    return path.with_suffix(".txt")


def base_python() -> str:
    """Return the interpreter on which our own virtual environment is based."""
    return os.path.realpath(sys.executable)


class Builder:
    """Builds environments in one folder. `env` is the environment of uv, with its index and proxy."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder = folder
        self._env = {name: value for name, value in env.items() if name not in _MISLEADING}

    async def build(self, path: Path, rule: Rule, report: Report) -> Made:
        """Build an environment, unless another process has built it meanwhile.

        Raises BuildFailed with the output of uv.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        async with _lock(path.with_suffix(".lock"), report) as lock:
            made = made_at(path)
            if made is not None:
                return made
            had_versions = versions_of(path).exists()
            try:
                return await self._build(path, rule, report, lock)
            except BaseException:
                await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
                if not had_versions:
                    versions_of(path).unlink(missing_ok=True)
                raise

    async def _build(self, path: Path, rule: Rule, report: Report, lock: int) -> Made:
        uv = self._find_uv()
        await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)  # left by a killed process
        report(f"building the environment for {rule.pattern} ({', '.join(rule.packages or ()) or 'no packages'})")
        # Never download an interpreter without the user's knowledge.
        python = rule.python or base_python()
        venv = [uv, "venv", "--quiet", "--no-python-downloads", "--python", python, str(path)]
        await self._run(venv, report, lock)
        interpreter = str(path / "bin" / "python")
        if rule.packages:
            versions = versions_of(path)
            if not versions.exists():
                await self._resolve(uv, interpreter, rule.packages, versions, report, lock)
            # Compile bytecode now: the environment is read-only in a container, where each start would compile it
            # again.
            options = (*_WHEELS_ONLY, "--compile-bytecode", "--require-hashes", "--python", interpreter)
            await self._run([uv, "pip", "install", "--no-progress", *options, "-r", str(versions)], report, lock)
        base, version = (await self._run([interpreter, "-c", _INFO], report, lock)).split()
        made = Made(base, version)
        (path / "skysail.json.new").write_bytes(msgspec.json.encode(made))
        (path / "skysail.json.new").replace(path / "skysail.json")
        report(f"the environment for {rule.pattern} is ready (Python {version})")
        return made

    async def _resolve(
        self, uv: str, interpreter: str, packages: Sequence[str], versions: Path, report: Report, lock: int
    ) -> None:
        """Resolve the packages and their dependencies, and write the versions with hashes."""
        desired, found = versions.with_suffix(".in"), versions.with_suffix(".new")
        desired.write_text(_requirements(packages))
        try:
            options = (*_WHEELS_ONLY, "--generate-hashes", "--no-header", "--no-annotate", "--python", interpreter)
            command = [uv, "pip", "compile", "--no-progress", *options, "-o", str(found), str(desired)]
            await self._run(command, report, lock)
            found.replace(versions)
        except BuildFailed as error:
            if _NO_SOLUTION in str(error):
                raise VersionUnavailable(str(error)) from error
            raise
        finally:
            desired.unlink()
            found.unlink(missing_ok=True)

    async def _run(self, argv: list[str], report: Report, lock: int) -> str:
        """Run a command, and return its stdout. Raises BuildFailed.

        The command inherits the lock: after a crash of this process, the next builder waits for the command.
        """
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=self.folder,  # uv reads the settings of the project in its working directory
            env=self._env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_MAX_LINE_BYTES,
            pass_fds=(lock,),
            umask=0o022,  # pods have other ids, and must be able to read the environment
        )
        try:
            assert process.stderr is not None, "stderr is a pipe"
            assert process.stdout is not None, "stdout is a pipe"
            errors = await _read_progress(process.stderr, report)
            printed = await process.stdout.read()
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if code != 0:
            raise BuildFailed(f"The environment could not be built: {_shortened(errors)}.")
        return printed.decode()

    def _find_uv(self) -> str:
        found = shutil.which("uv", path=f"{Path(sys.executable).parent}:{self._env.get('PATH', '')}")
        if found is None:
            raise BuildFailed("uv not found: run `pip install uv` to build environments.")
        return found


def installed_version(path: Path, package: str) -> str:
    """Return the locked version of a package of an environment. Empty if it is unknown."""
    try:
        lines = versions_of(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.split("==")[1].split()[0] for line in lines if line.startswith(f"{package}==")), "")


def _shortened(errors: str) -> str:
    """Return the beginning and the end of a long message: uv puts the cause first and hints last."""
    if len(errors) <= _MAX_REASON_LENGTH:
        return errors
    half = _MAX_REASON_LENGTH // 2
    return f"{errors[:half].rpartition(' ')[0]} … {errors[-half:].partition(' ')[2]}"


def _requirements(packages: Sequence[str]) -> str:
    """Return the text of a requirements file. Raises BuildFailed if uv would not read a name as a package."""
    for name in packages:
        if name.lstrip().startswith(("-", "#")) or not name.isprintable():
            raise BuildFailed(f"{name!r} is not the name of a package: correct the rule with `skysail image add`.")
    return "\n".join(packages)


async def _read_progress(stream: asyncio.StreamReader, report: Report) -> str:
    progress, errors = Progress(), []
    async for raw in stream:
        line = raw.decode(errors="replace")
        if step := progress.parse(line):
            report(step)
        elif not line.startswith("Using Python"):
            errors.extend(line.split())
    return " ".join(errors).removesuffix(".")


@asynccontextmanager
async def _lock(path: Path, report: Report) -> AsyncIterator[int]:
    """Hold the lock of an environment across processes. Polled, because a waiting thread could not be cancelled."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    is_reported = False
    try:
        while not _try_lock(descriptor):
            if not is_reported:
                report("another process is building this environment, waiting for it")
            is_reported = True
            await asyncio.sleep(_POLL_SECONDS)
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
