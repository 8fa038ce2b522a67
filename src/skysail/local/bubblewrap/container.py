"""Containers in bubblewrap sandboxes: start, signal and stop a program, and exec commands in its namespaces."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
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
from skysail.local.bubblewrap.host_files import files_of
from skysail.local.bubblewrap.host_tools import HostTools
from skysail.local.bubblewrap.process import ChildProcess, StdStreams, Stream
from skysail.local.bubblewrap.process_gate import ProcessGate
from skysail.local.bubblewrap.staging import Staging

# Flags of clone(2), by the names in /proc/<pid>/ns.
_NAMESPACES = {
    "mnt": 0x00020000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
_POLL_SECONDS = 0.002
# Bubblewrap writes its errors to the stderr of the program.
_OWN_OUTPUT = b"bwrap: "
_MAX_OWN_OUTPUT = 4096
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
    """Program and sandbox of a container. `namespace` is the name of a network namespace; empty: the caller's own."""

    root: rootfs.ContainerRoot
    argv: tuple[str, ...]
    namespace: str = ""
    stdin: bool = False
    terminal: bool = False
    groups: tuple[str, ...] = ()  # `cgroup.procs` files to join first
    identity: Identity | None = None  # None: the single id of the cluster's owner
    staging: Staging | None = None  # for the root of an image
    max_processes: int | None = None  # ignored with `identity`, whose user namespace has the limit


class ExitResult(msgspec.Struct, frozen=True, kw_only=True):
    """Exit code of a container. `failure` is the reason if the program never ran."""

    code: int
    failure: str = ""


class _Status(msgspec.Struct, rename="kebab"):
    """Message of bubblewrap's status pipe. Each message has some of the fields."""

    child_pid: int | None = None
    pid_namespace: int | None = None
    exit_code: int | None = None


class ExecFailed(Exception):
    """A command could not be started in a running container. The text is for the user."""


class Running:
    """Process with standard streams and an output buffer: base of containers and of exec commands."""

    def __init__(
        self, argv: Sequence[str], std_streams: StdStreams, keep: Sequence[int], now: Callable[[], float]
    ) -> None:
        self.streams = std_streams
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
        """Return the exit code, when all output is in the buffer. May be called repeatedly."""
        code = await asyncio.shield(self._child_process.ended)
        await asyncio.wait(self._pumps)
        await self._complete_output()
        self.output.end()
        self.streams.close()
        return code

    async def _complete_output(self) -> None:
        """Add output that was held back. The base class holds none back."""

    async def detach(self) -> None:
        """Close our ends of the streams, when no reader is left. The program sees that in its streams."""
        for pump in self._pumps:
            pump.cancel()
        await asyncio.wait(self._pumps)
        self.output.end()
        self.streams.close()

    def _put(self, stream: Stream) -> Callable[[bytes], Awaitable[None]]:
        async def put(data: bytes) -> None:
            await self.output.put(Output(stream, self._now(), data))

        return put


class ExecProcess(Running):
    """Command in a running container. Created by `BwrapContainer.exec`."""

    def kill(self) -> None:
        """Kill the command with its process group, and our helper process, which only entered the namespaces."""
        if self._child_process.ended.done():
            return
        command = _first_child(self._child_process.pid)
        with contextlib.suppress(ProcessLookupError):  # also if the command has no group yet
            if command is not None:
                os.killpg(command, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child_process.pid, signal.SIGKILL)


class BwrapContainer(Running):
    """One run of a container's program. Created by `start`."""

    def __init__(self, spec: ContainerSpec, tools: HostTools, now: Callable[[], float]) -> None:
        self._spec = spec
        self._tools = tools
        self._init: int | None = None
        self._init_descriptor: int | None = None
        self.pid_namespace: int | None = None
        self._was_executed = False
        self._held: dict[Stream, bytes] = {}
        self._is_unwanted = False
        self._gate: ProcessGate | None = None
        self._staged: Path | None = None
        status_reader, status_writer = os.pipe()
        with ExitStack() as ours, ExitStack() as theirs:
            ours.callback(os.close, status_reader)
            theirs.callback(os.close, status_writer)
            ours.callback(self._unstage)
            container_root, held = self._prepare_root(theirs)
            gate = self._make_gate(ours, theirs)
            arguments = open_file(rootfs.arguments(container_root, files_of(container_root)), spec.argv)
            theirs.callback(os.close, arguments)
            argv = _command_line(spec, tools, arguments=arguments, status=status_writer, gate=gate)
            std_streams = StdStreams(stdin=spec.stdin, terminal=spec.terminal, owner=self._owner)
            super().__init__(argv, std_streams, (arguments, status_writer, *held, *gate), now)
            ours.pop_all()
        self._unread = b""
        self._listener = asyncio.create_task(copy(Source(status_reader), self._read_status))

    @classmethod
    async def start(cls, spec: ContainerSpec, tools: HostTools, now: Callable[[], float]) -> BwrapContainer:
        """Return when the program runs, has ended, or could not be started: `finish` has the result."""
        container = cls(spec, tools, now)
        try:
            await container._until_executed()
            # Unmounting blocks until all processors respond, so it must not run in the event loop's thread.
            await asyncio.to_thread(container._unstage)
        except BaseException:
            container.kill()
            await asyncio.shield(container.finish())
            raise
        finally:
            container._unstage()
        return container

    async def finish(self) -> ExitResult:
        """Return how the container ended, when it has ended. May be called repeatedly."""
        code = await self.wait()
        await asyncio.wait([self._listener])
        if self._gate is not None:
            self._gate.open()
        if self._init_descriptor is not None:
            os.close(self._init_descriptor)
            self._init_descriptor = None
        if self._was_executed or code >= 128:  # noqa: PLR2004 (it was killed before it ran)
            return ExitResult(code=code)
        return ExitResult(code=128, failure=self._start_error())

    @property
    def has_ended(self) -> bool:
        return self._child_process.ended.done()

    async def terminate(self, grace: float) -> None:
        """Send TERM to the program, and KILL to everything after `grace` seconds. Returns when it has ended."""
        deadline = asyncio.get_running_loop().time() + grace
        program = self.program()
        if program is not None and grace > 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(program, signal.SIGTERM)
            await asyncio.wait([self._child_process.ended], timeout=deadline - asyncio.get_running_loop().time())
        self.kill()
        await asyncio.shield(self._child_process.ended)

    def kill(self) -> None:
        """Kill all processes: the kernel ends a pid namespace together with its PID 1.

        Bubblewrap itself is not killed, because it reaps PID 1. Before the sandbox is complete, PID 1 waits for
        bubblewrap for ever.
        """
        self._is_unwanted = True
        if self._init_descriptor is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init_descriptor, signal.SIGKILL)

    def program(self) -> int | None:
        """Return the pid of the program, the first child of PID 1, which itself accepts only KILL.

        Returns None if the program has not started or has ended.
        """
        return None if self._init is None or self.has_ended else _first_child(self._init)

    async def exec(self, command: tuple[str, ...], *, stdin: bool, terminal: bool) -> ExecProcess:
        """Start a command with the files, processes, network and privileges of the program. Raises ExecFailed."""
        if self._init_descriptor is None or self.has_ended:
            raise ExecFailed("the program has ended")
        _check_entry(command, self._spec.root)
        status_reader, status_writer = os.pipe()
        settings = _memory(json.dumps(self._entry(command, terminal=terminal)).encode())
        keep = (settings, self._init_descriptor, status_writer)
        argv = [sys.executable, "-I", "-S", str(Path(__file__).with_name("enter_namespaces.py")), *map(str, keep)]
        try:
            running = ExecProcess(argv, StdStreams(stdin=stdin, terminal=terminal, owner=self._owner), keep, self._now)
        finally:
            os.close(settings)
            os.close(status_writer)
        try:
            failure = await _read_all(status_reader)
        except asyncio.CancelledError:
            running.kill()  # the caller will never see the command
            await running.detach()
            raise
        if failure:
            await running.wait()
            raise ExecFailed(failure)
        return running

    def _entry(self, command: tuple[str, ...], *, terminal: bool) -> dict[str, object]:
        container_root = self._spec.root
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
        security, identity = self._spec.root.rights, self._spec.identity
        if identity is None:
            return None
        return {"user": rootfs.user(security), "group": rootfs.group(security), "groups": identity.groups}

    def _namespaces(self) -> int:
        """Return the flags of the namespaces that differ from ours: a process cannot join its own user namespace."""
        return sum(
            flag
            for name, flag in _NAMESPACES.items()
            if Path(f"/proc/{self._init}/ns/{name}").stat().st_ino != Path(f"/proc/self/ns/{name}").stat().st_ino
        )

    def _put(self, stream: Stream) -> Callable[[bytes], Awaitable[None]]:
        """Hold one first line back that may be bubblewrap's: a log has only what the program printed."""
        put, is_first = super()._put(stream), True

        async def put_or_hold(data: bytes) -> None:
            nonlocal is_first
            if is_first:
                data = self._held.pop(stream, b"") + data
                is_first = _may_be_own(data)
            if is_first:
                self._held[stream] = data
            else:
                await put(data)

        return put_or_hold

    async def _complete_output(self) -> None:
        await asyncio.wait([self._listener])
        while self._was_executed and self._held:
            stream, data = self._held.popitem()
            await super()._put(stream)(data)

    async def _read_status(self, data: bytes) -> None:
        """Parse bubblewrap's status: a line at the start, and one at the end if the program was executed."""
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
        """Wait for exec: only then the sandbox is complete, and a second command would enter it."""
        while not self.has_ended:
            program = self.program()
            with contextlib.suppress(OSError):
                if program is not None and not self._tools.is_bwrap(program):
                    return
            await asyncio.wait([self._child_process.ended], timeout=_POLL_SECONDS)

    @property
    def _owner(self) -> tuple[int, int] | None:
        """Host user and group of the program. None without `identity`."""
        identity, security = self._spec.identity, self._spec.root.rights
        return (
            None
            if identity is None
            else (identity.first + rootfs.user(security), identity.first + rootfs.group(security))
        )

    def _prepare_root(self, until: ExitStack) -> tuple[rootfs.ContainerRoot, list[int]]:
        """Return the container root with sources that bubblewrap can reach, and the descriptors to pass.

        Raises OSError.
        """
        container_root, identity = self._spec.root, self._spec.identity
        if identity is None:
            if container_root.image is not None:
                container_root, self._staged = self._staging.stage_image(container_root)
            container_root, held = _open_shared(container_root, until)
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
        """Unmount the staged sources: bubblewrap has its own mounts by now. Idempotent."""
        staged, self._staged = self._staged, None
        if staged is not None:
            self._staging.remove(staged)

    @property
    def _staging(self) -> Staging:
        """Folder for mounts. Raises OSError if this process may not mount anything."""
        staging = self._spec.identity.staging if self._spec.identity is not None else self._spec.staging
        if staging is None:
            raise PermissionError(errno.EPERM, "this machine does not allow the mount of an image's root")
        return staging

    def _make_gate(self, ours: ExitStack, theirs: ExitStack) -> list[int]:
        """Return the descriptor on which bubblewrap waits until the process limit is set.

        Empty if there is no limit.
        """
        if self._spec.identity is not None or self._spec.max_processes is None:
            return []
        self._gate = ProcessGate(self._spec.max_processes)
        theirs.callback(os.close, self._gate.descriptor)
        ours.callback(self._gate.open)
        return [self._gate.descriptor]

    def _start_error(self) -> str:
        held = b"".join(self._held.values()).decode(errors="replace").strip()
        message = (held or self.output.last_line()).removeprefix(_OWN_OUTPUT.decode())
        if "Unknown option" in message:
            return f"sandbox setup failed: bubblewrap is too old ({message}): update it, for example by apt-get"
        reason = message.rpartition(": ")[2] if "execvp" in message else ""
        if reason:
            return f'"{self._spec.argv[0]}" cannot be started: {_NOT_FOUND if "No such" in reason else reason}'
        return f"sandbox setup failed: {message or 'bubblewrap ended without a message'}"


def _may_be_own(data: bytes) -> bool:
    """Return whether the first output of a container is bubblewrap's only message, or the beginning of it."""
    line, _, rest = data.partition(b"\n")
    return (line.startswith(_OWN_OUTPUT) or _OWN_OUTPUT.startswith(data)) and not rest and len(line) < _MAX_OWN_OUTPUT


def _check_entry(command: tuple[str, ...], container_root: rootfs.ContainerRoot) -> None:
    """Raise ExecFailed if the command or the environment is invalid."""
    if not command:
        raise ExecFailed("the command is empty")
    try:
        check_words(command)
        check_environment(container_root.env)
    except InvalidArgument as error:
        raise ExecFailed(str(error).rstrip(".")) from error


def _open_shared(container_root: rootfs.ContainerRoot, until: ExitStack) -> tuple[rootfs.ContainerRoot, list[int]]:
    """Open the shared sources, and return the container root and their descriptors. Raises OSError."""
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
    # Join the cgroups first: forked processes must not escape, and the new /sys has no cgroups.
    return [
        *((tools.sh, "-c", _JOIN, "sh", *spec.groups, "--") if spec.groups else ()),
        # Unlike nsenter, `ip netns exec` mounts a new /sys. Without that the program would see the links of the local
        # cluster.
        *((tools.ip, "netns", "exec", spec.namespace) if spec.namespace else ()),
        *_become(spec, tools),
        *(tools.bwrap, "--args", str(arguments), "--json-status-fd", str(status)),
        *(word for descriptor in gate for word in ("--block-fd", str(descriptor))),
        "--",
        # Only the program's own session may own the terminal: Ctrl-C would kill bubblewrap itself.
        # An image need not have the program for that: without it, the shell has no job control.
        *((tools.setsid, "--ctty", "--") if spec.terminal and spec.root.image is None else ()),
        *spec.argv,
    ]


def _become(spec: ContainerSpec, tools: HostTools) -> tuple[str, ...]:
    """Return the words that run bubblewrap with the program's host ids, as the owner of the user namespace."""
    identity, security = spec.identity, spec.root.rights
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
    """Return a memfd: a pipe holds no more than 64 KB, and an argument is visible to all processes."""
    descriptor = os.memfd_create("skysail")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def _read_all(descriptor: int) -> str:
    content = bytearray()

    async def append(data: bytes) -> None:
        content.extend(data)

    await copy(Source(descriptor), append)
    return content.decode(errors="replace")
