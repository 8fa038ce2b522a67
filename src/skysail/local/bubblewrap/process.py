"""One child process: our ends of its streams, and its end. Knows nothing of boxes."""

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
# When memory runs out the kernel ends programs of pods before the node's agent, their parent.
_OOM_SCORE = "500"


class StdStreams:
    """A program's standard streams: three pipes, or one terminal. Ours on this side, its on the other."""

    def __init__(self, *, stdin: bool, terminal: bool, owner: tuple[int, int] | None = None) -> None:
        """`owner` is the host user and group of the program: only the owner can open /dev/stdout again."""
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
            # Not the machine's own /dev/null.
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

    def let_go(self) -> None:
        """Close their ends; after the program has them."""
        for descriptor in set(self.theirs):
            os.close(descriptor)

    def close(self) -> None:
        """Close our ends. The last one of a terminal hangs its programs up. May be called twice."""
        for source in self.sources.values():
            source.close()
        if self.sink is not None:
            self.sink.close()
        if self._master is not None:
            os.close(self._master)
            self._master = None


class ChildProcess:
    """Starts when made, in a session of its own. Make it in the event loop's thread: its life is tied to that one."""

    def __init__(self, argv: Sequence[str], std_streams: StdStreams, keep: Sequence[int]) -> None:
        stdin, stdout, stderr = std_streams.theirs
        try:
            self._process = subprocess.Popen(  # noqa: S603 (the box starts users' programs)
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
            std_streams.let_go()
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
