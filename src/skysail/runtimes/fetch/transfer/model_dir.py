"""Folder of a model. It appears complete or not at all, and only one process at a time works on it.

Next to `DIR`: `DIR.part` is the partial download, which survives crashes so that the next attempt resumes; `DIR.json`
describes the content of `DIR`; `DIR.lock` is held during the work.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import msgspec

from skysail.runtimes.fetch import untrusted_json
from skysail.runtimes.fetch.unpack.paths import files_in

_RETRY_SECONDS = 1.0
# Names of revisions; nothing else on a volume is ever deleted.
_REVISION = re.compile(r"([0-9a-f]{10})(\.part|\.json|\.lock|\.old)?")


class FetchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the folder. The digest is that of the download, before unpacking and layout."""

    digest: str
    bytes: int
    files: int


class _Marker(msgspec.Struct, frozen=True, kw_only=True):
    request: str
    outcome: FetchResult


class ModelDir:
    """Folder of a model. `request` is a hash of the arguments: a partial download for other arguments is discarded."""

    def __init__(self, into: Path, request: str) -> None:
        self._into = into
        self._request = request
        self._part = _beside(into, ".part")
        self.raw = self._part / "raw"
        self.marks = self._part / "marks"
        self.unpacked = self._part / "unpacked"
        self.laid = self._part / "laid"

    @asynccontextmanager
    async def lock(self, waiting: Callable[[], None]) -> AsyncIterator[None]:
        """Hold the lock. The lock of a killed process is free."""
        path = _beside(self._into, ".lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _try_lock(path)
        if lock is None:
            waiting()
        while lock is None:
            await asyncio.sleep(_RETRY_SECONDS)
            lock = _try_lock(path)
        with ExitStack() as ending:
            ending.callback(os.close, lock)
            ending.callback(path.unlink, missing_ok=True)
            yield

    def completed(self) -> FetchResult | None:
        """Return the existing content, or None if it is for another request or incomplete."""
        try:
            marker = untrusted_json.decode(_beside(self._into, ".json").read_bytes(), _Marker)
        except (FileNotFoundError, untrusted_json.InvalidJson):
            return None
        is_whole = self._into.is_dir() and _measure(self._into) == (marker.outcome.bytes, marker.outcome.files)
        return marker.outcome if marker.request == self._request and is_whole else None

    def open(self) -> None:
        """Prepare the folders. Keep the partial download of an earlier attempt for the same request."""
        note = self._part / "request"
        if not note.exists() or note.read_text("utf-8") != self._request:
            self.discard()
            self._part.mkdir(parents=True)
            note.write_text(self._request, "utf-8")
        for folder in (self.unpacked, self.laid):
            shutil.rmtree(folder, ignore_errors=True)
        self.raw.mkdir(exist_ok=True)
        self.laid.mkdir()

    def discard(self) -> None:
        shutil.rmtree(self._part, ignore_errors=True)

    def publish(self, digest: str) -> FetchResult:
        """Publish the folder. After this it stays complete, whatever happens."""
        size, files = _measure(self.laid)
        result = FetchResult(digest=digest, bytes=size, files=files)
        for folder in (*(path for path in self.laid.rglob("*") if path.is_dir()), self.laid):
            _sync(folder)
        self._set_aside()
        self.laid.rename(self._into)
        draft = self._part / "json"
        draft.write_bytes(msgspec.json.encode(_Marker(request=self._request, outcome=result)))
        _sync(draft)
        draft.rename(_beside(self._into, ".json"))
        _sync(self._into.parent)
        self.clean()
        return result

    def clean(self) -> None:
        """Delete leftovers, also those of a crash."""
        self.discard()
        shutil.rmtree(_beside(self._into, ".old"), ignore_errors=True)

    def _set_aside(self) -> None:
        """Move existing content away that is not for this request, such as a partial copy."""
        _beside(self._into, ".json").unlink(missing_ok=True)
        old = _beside(self._into, ".old")
        shutil.rmtree(old, ignore_errors=True)
        with suppress(FileNotFoundError):
            self._into.rename(old)

    def prune(self, keep: frozenset[str]) -> None:
        """Delete revisions from the volume that are not in `keep`."""
        for path in list(self._into.parent.iterdir()):
            named = _REVISION.fullmatch(path.name)
            if named is None or named[1] in keep or named[1] == self._into.name:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _try_lock(path: Path) -> int | None:
    """Return the lock, or None if another process holds it or has just deleted it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), path.stat()):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(lock)
    return None


def _measure(folder: Path) -> tuple[int, int]:
    sizes = list(_sizes(folder))
    return sum(sizes), len(sizes)


def _sizes(folder: Path) -> Iterator[int]:
    for path in files_in(folder):
        yield (folder / path).stat().st_size


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
