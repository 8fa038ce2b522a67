"""Which runs were begun and how they ended, on disk: no run is ever started a second time under its number.

A run is written down before its program starts. Programs end with the process that started them, so a run without an
end, found by the next process, was lost.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import msgspec

from skysail.cloud.provider import LOST, Ended, RunId

_LOST_CODE = 137
_LOST = "The container ended together with the node's agent, which is started again."


class RunJournal:
    """A folder for each pod, a file for each run, and in it the end of the run. Blocking, and quick."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_closed = False

    def past(self, now: float) -> dict[RunId, Ended]:
        """What earlier processes began and did not forget."""
        found = {_run(file): _end(file, now) for file in self._folder.glob("*/*")}
        for run, ended in found.items():
            self.end(run, ended)  # also for the process after this one
        return found

    def begin(self, run: RunId) -> None:
        """Before its program starts. Of those before, one is enough to know."""
        file = self._file(run)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        self._file(RunId(run.pod, run.container, run.number - 2)).unlink(missing_ok=True)

    def end(self, run: RunId, ended: Ended) -> None:
        if self._is_closed:
            return
        with contextlib.suppress(OSError):  # a full disk: it would be told lost, which is better than no end at all
            self.begin(run)
            self._file(run).write_bytes(msgspec.json.encode(ended))

    def withdraw(self, run: RunId) -> None:
        """Its program was never started, so its number is free again."""
        self._file(run).unlink(missing_ok=True)

    def forget(self, pod: str) -> None:
        """Nobody will ask for the runs of this pod again."""
        if not self._is_closed:
            shutil.rmtree(self._folder / pod, ignore_errors=True)

    def close(self) -> None:
        """What ends from now on ends because this process does: the next one tells that it was lost."""
        self._is_closed = True

    def _file(self, run: RunId) -> Path:
        return self._folder / run.pod / f"{run.container}.{run.number}"


def _run(file: Path) -> RunId:
    container, _, number = file.name.rpartition(".")
    return RunId(file.parent.name, container, int(number))


def _end(file: Path, now: float) -> Ended:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Ended)
    except msgspec.DecodeError:  # nothing, or half of it, was written
        began = file.stat().st_mtime
        return Ended(code=_LOST_CODE, reason=LOST, message=_LOST, started=began, ended=max(began, now))
