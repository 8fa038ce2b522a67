"""A person at a terminal, who runs kubectl."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Long, because a machine may be busy with other things; no test passes by waiting.
_TIMEOUT_SECONDS = 600.0


class Terminal:
    """A program on a pseudo terminal of its own. `seen` is what it has printed."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.execve(argv[0], argv, env)
        self.seen = b""

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        os.kill(self.pid, signal.SIGWINCH)

    def type(self, text: bytes) -> None:
        os.write(self.fd, text)

    def until(self, pattern: bytes) -> None:
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not re.search(pattern, self.seen):
            assert time.monotonic() < deadline, self.seen
            if select.select([self.fd], [], [], 0.2)[0]:
                self.seen += os.read(self.fd, 65536)

    def ask_until(self, question: bytes, pattern: bytes) -> None:
        """Ask again until the answer is so: nobody here sees when a new size has arrived."""
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        self.seen = b""
        while not re.search(pattern, self.seen):
            assert time.monotonic() < deadline, self.seen
            self.seen = b""
            self.type(question)
            self.until(rb"[$#] $")

    def end(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)
