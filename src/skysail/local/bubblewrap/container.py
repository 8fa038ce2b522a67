"""A program in its box: started, signalled, ended; and commands beside it, in the same namespaces."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from skysail.cloud.output_buffer import OutputBuffer
from skysail.cloud.provider import Output
from skysail.local import files
from skysail.local.bubblewrap import rootfs, seccomp_filter, user_namespace
from skysail.local.bubblewrap.arguments import InvalidArgument, check_environment, check_words, open_file
from skysail.local.bubblewrap.fd_streams import Source, copy
from skysail.local.bubblewrap.host_files import HostFiles
from skysail.local.bubblewrap.host_tools import HostTools
from skysail.local.bubblewrap.process import ChildProcess, StdStreams, Stream
from skysail.local.bubblewrap.process_gate import ProcessGate
from skysail.local.bubblewrap.staging import Staging

# By their names in /proc, as clone(2) knows them.
_NAMESPACES = {
    "mnt": 0x00020000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
_POLL_SECONDS = 0.002
_NOT_FOUND = "executable file not found in $PATH"
# The paths are arguments: in the script itself their characters could mean something else to the shell.
_JOIN = 'until [ "$1" = -- ]; do echo 0 > "$1" || exit; shift; done; shift; exec "$@"'


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The host ids of a container: its id N is the host's `first` + N.

    `namespace` is a descriptor of a user namespace that the container's user owns. `groups` are supplementary groups.
    """

    first: int
    namespace: int
    staging: Staging
    groups: tuple[int, ...] = ()


class ContainerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to start. `namespace` is a network namespace by its name; none: the caller's own."""

    room: rootfs.ContainerRoot
    argv: tuple[str, ...]
    namespace: str = ""
    stdin: bool = False
    terminal: bool = False
    groups: tuple[str, ...] = ()  # `cgroup.procs` files to join first
    identity: Identity | None = None  # None: the one id of the cluster's owner
    max_processes: int | None = None  # where `identity` has none: its user namespace has the limit already


class ExitResult(msgspec.Struct, frozen=True, kw_only=True):
    """`failure` says why the program never ran."""

    code: int
    failure: str = ""


class _Status(msgspec.Struct, rename="kebab"):
    """What bubblewrap says in its status pipe, piece by piece."""

    child_pid: int | None = None
    pid_namespace: int | None = None
    exit_code: int | None = None


class ExecFailed(Exception):
    """A command could not be started beside a program. Its text is a sentence."""


class Running:
    """What a box and a command beside one have in common: streams, a tape of the output, an end."""

    def __init__(
        self, argv: Sequence[str], std_streams: StdStreams, keep: Sequence[int], now: Callable[[], float]
    ) -> None:
        self.wires = std_streams
        self.output = OutputBuffer()
        self._now = now
        try:
            self._child_process = ChildProcess(argv, std_streams, keep)
        except OSError:
            std_streams.close()
            raise
        self._pumps = [
            asyncio.create_task(copy(source, self._put(stream))) for stream, source in std_streams.sources.items()
        ]

    async def wait(self) -> int:
        """The exit code, when the last of the output is on the tape. May be called twice."""
        code = await asyncio.shield(self._child_process.ended)
        await asyncio.wait(self._pumps)
        self.output.end()
        self.wires.close()
        return code

    async def drop(self) -> None:
        """Nobody listens any more: close our ends. The program learns it from its streams."""
        for pump in self._pumps:
            pump.cancel()
        await asyncio.wait(self._pumps)
        self.output.end()
        self.wires.close()

    def _put(self, stream: Stream) -> Callable[[bytes], Awaitable[None]]:
        async def put(data: bytes) -> None:
            await self.output.put(Output(stream, self._now(), data))

        return put


class ExecProcess(Running):
    """One beside a program. Made by `BwrapContainer.exec`."""

    def kill(self) -> None:
        """End it with all of its group. What we started ourselves is only the way into the box."""
        if self._child_process.ended.done():
            return
        command = _first_child(self._child_process.pid)
        with contextlib.suppress(ProcessLookupError):  # also if the command has no group yet
            if command is not None:
                os.killpg(command, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child_process.pid, signal.SIGKILL)


class BwrapContainer(Running):
    """One run of one program. Made by `start`."""

    def __init__(self, spec: ContainerSpec, tools: HostTools, now: Callable[[], float]) -> None:
        self._spec = spec
        self._tools = tools
        self._init: int | None = None
        self._init_descriptor: int | None = None
        self.pid_namespace: int | None = None
        self._was_executed = False
        self._is_unwanted = False
        self._gate: ProcessGate | None = None
        self._staged: Path | None = None
        heard, status_writer = os.pipe()
        with ExitStack() as ours, ExitStack() as theirs:
            ours.callback(os.close, heard)
            theirs.callback(os.close, status_writer)
            ours.callback(self._unstage)
            container_root, held = self._furnished(theirs)
            gate = self._make_gate(ours, theirs)
            arguments = open_file(rootfs.arguments(container_root, HostFiles()), spec.argv)
            theirs.callback(os.close, arguments)
            argv = _command_line(spec, tools, arguments=arguments, status=status_writer, gate=gate)
            std_streams = StdStreams(stdin=spec.stdin, terminal=spec.terminal, owner=self._owner)
            super().__init__(argv, std_streams, (arguments, status_writer, *held, *gate), now)
            ours.pop_all()
        self._unread = b""
        self._listener = asyncio.create_task(copy(Source(heard), self._hear))

    @classmethod
    async def start(cls, spec: ContainerSpec, tools: HostTools, now: Callable[[], float]) -> BwrapContainer:
        """Returns when the program runs, or has ended already, or could not be started: `wait` tells."""
        container = cls(spec, tools, now)
        try:
            await container._until_executed()
            # The kernel waits for all processors when mounts go: not in the event loop's thread.
            await asyncio.to_thread(container._unstage)
        except BaseException:
            container.kill()
            await asyncio.shield(container.finish())
            raise
        finally:
            container._unstage()
        return container

    async def finish(self) -> ExitResult:
        """How it ended, when it has. May be called twice."""
        code = await self.wait()
        await asyncio.wait([self._listener])
        if self._gate is not None:
            self._gate.open()
        if self._init_descriptor is not None:
            os.close(self._init_descriptor)
            self._init_descriptor = None
        if self._was_executed or code >= 128:  # noqa: PLR2004 (it was killed before it ran)
            return ExitResult(code=code)
        return ExitResult(code=128, failure=self._why())

    @property
    def has_ended(self) -> bool:
        return self._child_process.ended.done()

    async def terminate(self, grace: float) -> None:
        """TERM to the program itself, KILL to everything after `grace` seconds. Returns when it has ended."""
        deadline = asyncio.get_running_loop().time() + grace
        program = self.program()
        if program is not None and grace > 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(program, signal.SIGTERM)
            await asyncio.wait([self._child_process.ended], timeout=deadline - asyncio.get_running_loop().time())
        self.kill()
        await asyncio.shield(self._child_process.ended)

    def kill(self) -> None:
        """End the whole tree: the kernel ends a pid namespace with its first process.

        Bubblewrap itself is spared: it collects that process, which before it is furnished would wait for it for ever.
        """
        self._is_unwanted = True
        if self._init_descriptor is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init_descriptor, signal.SIGKILL)

    def program(self) -> int | None:
        """The user's program: the first child of the box's first process, which itself takes no signal but KILL."""
        return None if self._init is None or self.has_ended else _first_child(self._init)

    async def exec(self, command: tuple[str, ...], *, stdin: bool, terminal: bool) -> ExecProcess:
        """Start a command that sees the program's files, processes and network, with the same rights."""
        if self._init_descriptor is None or self.has_ended:
            raise ExecFailed("the program has ended")
        _check_entry(command, self._spec.room)
        heard, status_writer = os.pipe()
        order = _memory(json.dumps(self._entry(command, terminal=terminal)).encode())
        keep = (order, self._init_descriptor, status_writer)
        argv = [sys.executable, "-I", "-S", str(Path(__file__).with_name("enter_namespaces.py")), *map(str, keep)]
        try:
            running = ExecProcess(argv, StdStreams(stdin=stdin, terminal=terminal, owner=self._owner), keep, self._now)
        finally:
            os.close(order)
            os.close(status_writer)
        try:
            failure = await _read_all(heard)
        except asyncio.CancelledError:
            running.kill()  # nobody will know of it
            await running.drop()
            raise
        if failure:
            await running.wait()
            raise ExecFailed(failure)
        return running

    def _entry(self, command: tuple[str, ...], *, terminal: bool) -> dict[str, object]:
        container_root = self._spec.room
        return {
            "argv": command,
            "env": dict(container_root.env) | ({"TERM": "xterm"} if terminal else {}),
            "working_dir": container_root.working_dir,
            "terminal": terminal,
            "capabilities": list(rootfs.capabilities(container_root.rights).values()),
            "namespaces": self._namespaces(),
            "groups": self._spec.groups,
            "ids": self._ids(),
            "max_processes": self._spec.max_processes if self._spec.identity is None else None,
            "filter": _filter_of(container_root),
        }

    def _ids(self) -> dict[str, object] | None:
        security, identity = self._spec.room.rights, self._spec.identity
        if identity is None:
            return None
        return {"user": rootfs.user(security), "group": rootfs.group(security), "groups": identity.groups}

    def _namespaces(self) -> int:
        """Those that are not ours, because nobody may enter the user namespace that he is in."""
        return sum(
            flag
            for name, flag in _NAMESPACES.items()
            if Path(f"/proc/{self._init}/ns/{name}").stat().st_ino != Path(f"/proc/self/ns/{name}").stat().st_ino
        )

    async def _hear(self, data: bytes) -> None:
        """Bubblewrap writes a line at the start and one at the end, but the latter only if the program was executed."""
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            message = msgspec.json.decode(line, type=_Status)
            self._was_executed |= message.exit_code is not None
            if message.child_pid is not None:
                self._init, self.pid_namespace = message.child_pid, message.pid_namespace
                with contextlib.suppress(ProcessLookupError):
                    self._init_descriptor = os.pidfd_open(message.child_pid)
                    if self._gate is not None:
                        self._gate.limit(message.child_pid)
                if self._gate is not None:
                    self._gate.open()
                if self._is_unwanted:
                    self.kill()

    async def _until_executed(self) -> None:
        """Only then the box is furnished, and a command beside the program would find itself inside it."""
        while not self.has_ended:
            program = self.program()
            with contextlib.suppress(OSError):
                if program is not None and not self._tools.is_bwrap(program):
                    return
            await asyncio.wait([self._child_process.ended], timeout=_POLL_SECONDS)

    @property
    def _owner(self) -> tuple[int, int] | None:
        """The host user and group of the program."""
        identity, security = self._spec.identity, self._spec.room.rights
        return (
            None
            if identity is None
            else (identity.first + rootfs.user(security), identity.first + rootfs.group(security))
        )

    def _furnished(self, until: ExitStack) -> tuple[rootfs.ContainerRoot, list[int]]:
        """Return the room with sources that bubblewrap can reach, and the descriptors that it needs. Raises OSError."""
        container_root, identity = self._spec.room, self._spec.identity
        if identity is None:
            container_root, held = _held(container_root, until)
        else:
            container_root, self._staged = identity.staging.stage(container_root, identity.namespace)
            container_root, held = (
                msgspec.structs.replace(container_root, user_namespace=identity.namespace),
                [identity.namespace],
            )
        rules = None if container_root.rights.is_unconfined else seccomp_filter.descriptor()
        if rules is not None:
            until.callback(os.close, rules)
            held.append(rules)
        return msgspec.structs.replace(container_root, seccomp_filter=rules), held

    def _unstage(self) -> None:
        """Remove the mounts that were made for the start: bubblewrap has its own. May be called twice."""
        staged, self._staged = self._staged, None
        if staged is not None and self._spec.identity is not None:
            self._spec.identity.staging.remove(staged)

    def _make_gate(self, ours: ExitStack, theirs: ExitStack) -> list[int]:
        """Return the descriptor at which bubblewrap waits until the limit of processes is set, if there is one."""
        if self._spec.identity is not None or self._spec.max_processes is None:
            return []
        self._gate = ProcessGate(self._spec.max_processes)
        theirs.callback(os.close, self._gate.descriptor)
        ours.callback(self._gate.open)
        return [self._gate.descriptor]

    def _why(self) -> str:
        words = self.output.last_line()
        if "Unknown option" in words:
            return f"the sandbox could not be made: bubblewrap is too old ({words}): update it, for example by apt-get"
        reason = words.rpartition(": ")[2] if "execvp" in words else ""
        if reason:
            return f'"{self._spec.argv[0]}" cannot be started: {_NOT_FOUND if "No such" in reason else reason}'
        return f"the sandbox could not be made: {words or 'it ended without a word'}"


def _check_entry(command: tuple[str, ...], container_root: rootfs.ContainerRoot) -> None:
    """Raise NotStarted if a command beside the program cannot be executed as it is."""
    if not command:
        raise ExecFailed("no command was named")
    try:
        check_words(command)
        check_environment(container_root.env)
    except InvalidArgument as error:
        raise ExecFailed(str(error).rstrip(".")) from error


def _held(container_root: rootfs.ContainerRoot, until: ExitStack) -> tuple[rootfs.ContainerRoot, list[int]]:
    """The room with what is shared in it held open, and the descriptors. Raises OSError."""
    binds, held = [], []
    for bind_mount in container_root.binds:
        descriptor = files.open_nofollow(Path(bind_mount.source)) if bind_mount.is_shared else None
        if descriptor is not None:
            until.callback(os.close, descriptor)
            held.append(descriptor)
        binds.append(msgspec.structs.replace(bind_mount, descriptor=descriptor))
    return msgspec.structs.replace(container_root, binds=tuple(binds)), held


def _filter_of(container_root: rootfs.ContainerRoot) -> str | None:
    instructions = None if container_root.rights.is_unconfined else seccomp_filter.program()
    return None if instructions is None else base64.b64encode(instructions).decode()


def _command_line(spec: ContainerSpec, tools: HostTools, *, arguments: int, status: int, gate: list[int]) -> list[str]:
    # A program joins its groups before anything else: what it forks must not escape, and a fresh /sys has no groups.
    return [
        *((tools.sh, "-c", _JOIN, "sh", *spec.groups, "--") if spec.groups else ()),
        # Unlike nsenter it mounts a new /sys, else a program would see the links of the hull.
        *((tools.ip, "netns", "exec", spec.namespace) if spec.namespace else ()),
        *_become(spec, tools),
        *(tools.bwrap, "--args", str(arguments), "--json-status-fd", str(status)),
        *(word for descriptor in gate for word in ("--block-fd", str(descriptor))),
        "--",
        # Only the program's own session may hold the terminal: Ctrl-C would end the box itself.
        *((tools.setsid, "--ctty", "--") if spec.terminal else ()),
        *spec.argv,
    ]


def _become(spec: ContainerSpec, tools: HostTools) -> tuple[str, ...]:
    """Return the words that run bubblewrap with the host ids of the program: it may enter the namespace it owns."""
    identity, security = spec.identity, spec.room.rights
    if identity is None:
        return ()
    groups = [identity.first + group for group in identity.groups]
    user, group = identity.first + rootfs.user(security), identity.first + rootfs.group(security)
    return user_namespace.become(tools, user, group, groups)


def _first_child(pid: int) -> int | None:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    return int(children[0]) if children else None


def _memory(content: bytes) -> int:
    """A file without a name: a pipe would hold no more than 64 KB, an argument is seen by everybody."""
    descriptor = os.memfd_create("skysail")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def _read_all(descriptor: int) -> str:
    content = bytearray()

    async def hear(data: bytes) -> None:
        content.extend(data)

    await copy(Source(descriptor), hear)
    return content.decode(errors="replace")
