"""Child process with its standard streams and exit code. Knows nothing of containers."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import stat
import struct
import subprocess
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from skysail.local.bubblewrap.fd_streams import Sink, Source

Stream = Literal["stdout", "stderr"]
# When memory runs out, the kernel kills programs of pods before their parent, the node agent.
_OOM_SCORE = "500"


class StdStreams:
    """Standard streams of a program: three pipes, or one terminal, with our ends and the program's ends."""

    def __init__(self, *, stdin: bool, terminal: bool, owner: tuple[int, int] | None = None) -> None:
        """Open the streams.

        `owner` is the host user and group of the program: only the owner can reopen /dev/stdout.
        """
        self.sources: dict[Stream, Source] = {}
        self.sink: Sink | None = None
        self._master: int | None = None
        if terminal:
            self._open_terminal(stdin=stdin)
        else:
            self._open_pipes(stdin=stdin)
        if owner is not None:
            self._give_to(*owner)

    def _give_to(self, user: int, group: int) -> None:
        for descriptor in set(self.theirs):
            # Do not change the machine's own /dev/null.
            if stat.S_ISFIFO(os.fstat(descriptor).st_mode) or os.isatty(descriptor):
                os.fchown(descriptor, user, group)

    def _open_terminal(self, *, stdin: bool) -> None:
        master, slave = os.openpty()
        self.theirs = (slave, slave, slave)
        self._master = os.dup(master)
        if stdin:
            self.sink = Sink(os.dup(master))
        self.sources["stdout"] = Source(master)

    def _open_pipes(self, *, stdin: bool) -> None:
        if stdin:
            their_input, ours = os.pipe()
            self.sink = Sink(ours)
        else:
            their_input = os.open(os.devnull, os.O_RDONLY)
        output, their_output = os.pipe()
        errors, their_errors = os.pipe()
        self.sources = {"stdout": Source(output), "stderr": Source(errors)}
        self.theirs = (their_input, their_output, their_errors)

    @property
    def is_terminal(self) -> bool:
        return self._master is not None

    def resize(self, width: int, height: int) -> None:
        if self._master is not None:
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def close_theirs(self) -> None:
        """Close the program's ends in this process. Call it after the program has started."""
        for descriptor in set(self.theirs):
            os.close(descriptor)

    def close(self) -> None:
        """Close our ends. Closing the last end of a terminal hangs up its programs. Idempotent."""
        for source in self.sources.values():
            source.close()
        if self.sink is not None:
            self.sink.close()
        if self._master is not None:
            os.close(self._master)
            self._master = None


class ChildProcess:
    """Child process in its own session, started by the constructor.

    Create it in the event loop's thread: a parent-death signal is tied to the parent's thread.
    """

    def __init__(self, argv: Sequence[str], std_streams: StdStreams, keep: Sequence[int]) -> None:
        stdin, stdout, stderr = std_streams.theirs
        try:
            self._process = subprocess.Popen(  # noqa: S603 (containers start users' programs)
                argv,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=keep,
                start_new_session=True,
                cwd="/",
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            )
        finally:
            std_streams.close_theirs()
        with contextlib.suppress(OSError):  # the program has ended already
            Path(f"/proc/{self._process.pid}/oom_score_adj").write_text(_OOM_SCORE)
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = loop.create_future()
        self._descriptor = os.pidfd_open(self._process.pid)
        loop.add_reader(self._descriptor, self._end, loop)

    @property
    def pid(self) -> int:
        return self._process.pid

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        code = self._process.wait()
        self.ended.set_result(code if code >= 0 else 128 - code)
