"""Journal of runs and how they ended, on disk: no run is ever started twice under the same number.

A run is recorded before its program starts. Programs end with the process that started them, so a run without an end
that the next process finds was lost.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import msgspec

from skysail.cloud.provider import LOST, Ended, RunId

_LOST_CODE = 137
_LOST = "The container ended together with the node agent, which has been restarted."


class RunJournal:
    """Journal with a folder for each pod and a file for each run, which holds its end. Blocking, and fast."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_closed = False

    def past(self, now: float) -> dict[RunId, Ended]:
        """Return the runs of earlier processes that were not forgotten."""
        found = {_run(file): _end(file, now) for file in self._folder.glob("*/*")}
        for run, ended in found.items():
            self.end(run, ended)  # for later processes too
        return found

    def begin(self, run: RunId) -> None:
        """Record a run before its program starts. Of earlier runs, only the previous one is kept."""
        file = self._file(run)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        self._file(RunId(run.pod, run.container, run.number - 2)).unlink(missing_ok=True)

    def end(self, run: RunId, ended: Ended) -> None:
        if self._is_closed:
            return
        with contextlib.suppress(OSError):  # disk full: the run will count as lost, which is better than no end
            self.begin(run)
            self._file(run).write_bytes(msgspec.json.encode(ended))

    def withdraw(self, run: RunId) -> None:
        """Delete the record of a run whose program never started, so that its number can be used again."""
        self._file(run).unlink(missing_ok=True)

    def forget(self, pod: str) -> None:
        """Delete the records of a pod."""
        if not self._is_closed:
            shutil.rmtree(self._folder / pod, ignore_errors=True)

    def close(self) -> None:
        """Stop recording.

        Containers that end from now on end with this process, and the next one reports them as lost.
        """
        self._is_closed = True

    def _file(self, run: RunId) -> Path:
        return self._folder / run.pod / f"{run.container}.{run.number}"


def _run(file: Path) -> RunId:
    container, _, number = file.name.rpartition(".")
    return RunId(file.parent.name, container, int(number))


def _end(file: Path, now: float) -> Ended:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Ended)
    except msgspec.DecodeError:  # empty or truncated
        began = file.stat().st_mtime
        return Ended(code=_LOST_CODE, reason=LOST, message=_LOST, started=began, ended=max(began, now))
