"""Runs one command and writes what it used when it ends. Ends with it, and passes on the wish that it end.

usage: python -m bench.meter RESULT COMMAND...
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from bench import process


class Used(msgspec.Struct, frozen=True):
    """Processor time in seconds, the most memory in MB."""

    cpu: float
    highest_memory: float


def run(argv: list[str]) -> Used:
    """Returns when the command has ended, by itself or because this process was asked to."""
    child = subprocess.Popen(argv)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: os.kill(child.pid, number))
    _, _, used = os.wait4(child.pid, 0)
    return Used(used.ru_utime + used.ru_stime, process.highest_memory(used))


def main() -> None:
    result, *command = sys.argv[1:]
    Path(result).write_bytes(msgspec.json.encode(run(command)))


if __name__ == "__main__":
    main()
