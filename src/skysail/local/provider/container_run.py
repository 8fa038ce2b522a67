"""One run of a container, from the request to start it until its end. Owns its sandbox, folder and cgroup."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import shlex
import shutil
import stat
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from skysail.base.names import EventReason
from skysail.cloud.errors import Gone, Rejected
from skysail.cloud.provider import EVICTED, Container, Ended, RunId, Running, State
from skysail.local.bubblewrap import mount_points, rootfs
from skysail.local.bubblewrap.arguments import InvalidArgument
from skysail.local.bubblewrap.cgroups import NO_GROUP, Cgroup
from skysail.local.bubblewrap.container import BwrapContainer, ContainerSpec, ExitResult, Identity
from skysail.local.bubblewrap.rootfs import BindMount, ContainerRoot, ImageRoot, TooManyEntries
from skysail.local.bubblewrap.staging import UPPER, WORK
from skysail.local.bubblewrap.user_namespace import MAX_ID
from skysail.local.errors import BuildFailed
from skysail.local.files import remove_tree
from skysail.local.images import image_users
from skysail.local.images.environments import Environment
from skysail.local.images.loaded_images import LoadedImage
from skysail.local.images.rules import CopiedDir
from skysail.local.provider.dependencies import ProviderDependencies
from skysail.local.provider.image_pull_events import PullReporter
from skysail.local.provider.pod_sandbox import PodSandbox
from skysail.local.provider.storage_limits import ContainerFiles

_MAX_MESSAGE_LENGTH = 4096
_KILLED = 137
_START_ERROR = 128
_UNKNOWN_END = "The end of the container could not be observed. The log of the node's agent has the reason."
_HOME = "/root"
# Folders that every container has for itself, and their paths inside.
_OWN = {"tmp": "/tmp", "home": _HOME}  # noqa: S108 (inside the container)
_PYTHON_TAG = re.compile(r"(?:^|/)python:(\d+(?:\.\d+)*)(?![\w.])")
_MAX_ATTEMPTS = 50
_RETRY_SECONDS = 0.02


class ContainerRun:
    """One run of a container.

    `state` is None until the run has started or ended, and if it was rejected.
    """

    def __init__(self, run: RunId, container: Container, pod_sandbox: PodSandbox, deps: ProviderDependencies) -> None:
        self.id = run
        self.container = container
        self.state: State | None = None
        self._pod_sandbox = pod_sandbox
        self._deps = deps
        self._container: BwrapContainer | None = None
        self._cgroup: Cgroup = NO_GROUP
        self._began: float | None = None
        self._eviction = ""
        self._kills_before = 0
        self._folder = pod_sandbox.folder / f"{run.container}.{run.number}"
        self._image_id = ""
        # Keeps a loaded image from being removed while the container runs.
        self._image_use = contextlib.ExitStack()

    def begin(self, *, changed: Callable[[], None], failed: Callable[[], None]) -> None:
        """Start the run in the background.

        `changed` is called after each change of `state`, and `failed` after the clean-up of a run that was rejected.
        """
        self._changed = changed
        self._failed = failed
        self._start = asyncio.create_task(self._started())
        # Retrieve the error, because the caller of `started` may be gone.
        self._start.add_done_callback(lambda start: start.cancelled() or start.exception())
        self._lifecycle = asyncio.create_task(self._run_to_end())

    async def started(self) -> None:
        """Wait until the program runs or has failed to start. Raises Rejected if it can never start."""
        await asyncio.wait([self._start])
        if self._start.cancelled() or self._start.exception() is not None:
            await asyncio.wait([self._lifecycle])  # the clean-up is complete, and `state` is final
        if not self._start.cancelled():
            self._start.result()

    async def ended(self) -> Ended:
        """Return how the run ended. Raises Gone if it was rejected. May be awaited by several callers."""
        await asyncio.shield(self._lifecycle)
        if not isinstance(self.state, Ended):
            raise Gone("The run was rejected.")
        return self.state

    @property
    def running(self) -> BwrapContainer:
        """The container while it runs. Raises Gone if it does not run."""
        if self._container is None or not isinstance(self.state, Running):
            raise Gone(f"Container {self.id.container} is not running.")
        return self._container

    @property
    def last_container(self) -> BwrapContainer | None:
        """The container whose buffer has the output, also after its end. None if it never started."""
        return self._container

    @property
    def files(self) -> ContainerFiles:
        """Folders in which the container writes."""
        logs = self._deps.logs
        log = (logs / self.id.pod / self.id.container,) if logs is not None else ()
        limit = self.container.limits.ephemeral_storage
        return ContainerFiles(name=self.id.container, folders=(self._folder, *log), limit=limit)

    async def evict(self, message: str) -> None:
        self._eviction = message
        await self.stop(0)

    async def stop(self, grace: float) -> None:
        """Stop the run, and return when it has ended. Of several calls, the shortest grace period counts."""
        if not self._start.done():
            self._start.cancel()
        elif self._container is not None:
            await self._container.terminate(grace)
        await asyncio.wait([self._lifecycle])

    async def _run_to_end(self) -> None:
        """Wait for the end of the run, and clean up in any case."""
        await asyncio.wait([self._start])
        try:
            await self._follow()
        finally:
            if isinstance(self.state, Running) and self._container is not None:
                # After an error: the pod must not be shown as running for ever, nor run beside its successor.
                self._container.kill()
                self._end(code=_KILLED, reason="Error", message=_UNKNOWN_END)
        if self.state is None:
            self._deps.journal.withdraw(self.id)
        await asyncio.to_thread(remove_tree, self._folder, ignore_errors=True)
        self._image_use.close()
        await self._remove_cgroup()
        if self.state is None:
            self._failed()

    async def _follow(self) -> None:
        if self._start.cancelled():
            message = self._eviction or "The container was stopped before it started."
            self._end(code=_KILLED, reason=EVICTED if self._eviction else "Error", message=message)
        elif self._container is not None and not isinstance(self.state, Ended):
            self._conclude(await self._container.finish())

    async def _remove_cgroup(self) -> None:
        """Remove the cgroup, and retry while an exec command exits. The next start of the agent removes the rest."""
        for _ in range(_MAX_ATTEMPTS):
            if self._cgroup.remove():
                return
            await asyncio.sleep(_RETRY_SECONDS)

    async def _started(self) -> None:
        try:
            environment = await self._environment()
            self._use_image(environment.loaded)
            foreign = environment.foreign_program(argv(self.container, environment)[0])
            if foreign is not None:
                self._end(code=_START_ERROR, reason="StartError", message=self._missing_program(foreign))
                return
            self._check_ids()
            await _uncancelled(asyncio.to_thread(self._make_folders, environment))
            self._cgroup = self._deps.groups.make(
                f"{self.id.pod}.{self.id.container}.{self.id.number}", self.container.limits
            )
            self._kills_before = self._deps.groups.out_of_memory_kills()
            self._deps.journal.begin(self.id)
            self._began = self._deps.now()
            self._container = await BwrapContainer.start(self._spec(environment), self._deps.tools, self._deps.now)
        except (TooManyEntries, InvalidArgument) as error:
            raise Rejected("CreateContainerConfigError", str(error)) from error
        except BuildFailed as error:
            raise Rejected("ErrImagePull", str(error)) from error
        except OSError as error:
            if error.errno == errno.E2BIG:
                self._end(code=_START_ERROR, reason="StartError", message=_too_long(argv(self.container, environment)))
                return
            raise Rejected("CreateContainerError", f"The container cannot be created: {error.strerror}.") from error
        if self._container.has_ended:
            self._conclude(await self._container.finish())
        else:
            self.state = Running(self._began, self._image_id)
            self._changed()

    async def _environment(self) -> Environment:
        image, found = self.container.image, None
        pull_reporter = PullReporter(
            image, partial(self._deps.record, self.id), partial(self._deps.show_progress, self.id)
        )
        try:
            found = await self._deps.images.find(image, pull_reporter.report)
        finally:
            pull_reporter.finish(is_here=found is not None)
        if found is None:
            raise Rejected(
                "ErrImagePull",
                f"Image {image} has no environment on this machine: "
                f"`skysail image add {shlex.quote(image)} --with PACKAGE,PACKAGE` builds one, and `skysail image load "
                "FILE` loads a saved image.",
            )
        if error := _python_mismatch(image, found):
            self._deps.record(self.id, EventReason.PYTHON_VERSION_MISMATCH, error)
        if found.warning:
            self._deps.record(self.id, EventReason.IMAGE_VERSION_MISMATCH, found.warning)
        return found

    def _use_image(self, loaded: LoadedImage | None) -> None:
        """Take user and group of a loaded image, for what the pod does not set. Raises Rejected or OSError."""
        if loaded is None:
            return
        self._image_use.enter_context(self._deps.images.in_use(loaded))
        self._image_id = loaded.id
        rights = image_users.resolve(self.container.rights, loaded.program.user, Path(loaded.root))
        self.container = msgspec.structs.replace(self.container, rights=rights)

    def _missing_program(self, program: str) -> str:
        name, image = Path(program).name, self.container.image
        return (
            f'"{name}" is not in the environment of image {image}, and the machine\'s own {program} is '
            f"not used in its place: add the package with `skysail image add {shlex.quote(image)} --with …`."
        )

    def _make_folders(self, environment: Environment) -> None:
        remove_tree(self._folder, ignore_errors=True)
        own_folders = _own_folders(environment)
        for name in own_folders:
            (self._folder / name).mkdir(parents=True)
        (self._folder / "tmp").chmod(0o1777)
        (self._folder / "message").touch()
        for path in _below_own(environment):
            (self._folder / path).mkdir(parents=True, exist_ok=True)
        own = ["message", *(name for name in own_folders if name != "tmp")]
        if environment.loaded is not None:
            self._make_scratch(Path(environment.loaded.root))
        for name, copied_dir in _copies(environment):
            shutil.copytree(copied_dir.source, self._folder / name, symlinks=True)
            own.append(name)
        security = self.container.rights
        for name in own:
            self._pod_sandbox.ownership.give(self._folder / name, rootfs.user(security), rootfs.group(security))
        self._pod_sandbox.ownership.give(self._folder / "tmp", 0, 0)
        if self._pod_sandbox.ids is not None:
            self._pod_sandbox.ids.namespace(rootfs.user(security))  # created here, because it blocks for a moment

    def _make_scratch(self, lower: Path) -> None:
        """Make the folders for changes to the root of an image. Its root folder keeps owner and mode."""
        upper, root = self._folder / "scratch" / UPPER, lower.stat()
        upper.mkdir(parents=True)
        (self._folder / "scratch" / WORK).mkdir()
        ids = self._pod_sandbox.ids
        if ids is not None:
            os.chown(upper, ids.first + root.st_uid, ids.first + root.st_gid)
        upper.chmod(stat.S_IMODE(root.st_mode))

    def _spec(self, environment: Environment) -> ContainerSpec:
        container, loaded = self.container, environment.loaded
        container_root = ContainerRoot(
            hostname=self._pod_sandbox.pod.hostname,
            env=tuple(self._env(environment).items()),
            working_dir=container.working_dir or _working_dir(environment),
            binds=self._binds(environment),
            environment=tuple(BindMount(folder, folder, read_only=True) for folder in environment.folders),
            rights=container.rights,
            image=ImageRoot(lower=loaded.root, scratch=str(self._folder / "scratch")) if loaded else None,
        )
        mount_points.prepare(container_root)
        return ContainerSpec(
            root=container_root,
            argv=argv(self.container, environment),
            namespace=self._pod_sandbox.namespace,
            stdin=container.stdin,
            terminal=container.tty,
            groups=self._cgroup.procs_files,
            identity=self._identity(),
            staging=self._deps.isolation.staging,
            max_processes=self._deps.isolation.max_processes,
        )

    def _identity(self) -> Identity | None:
        ids = self._pod_sandbox.ids
        if ids is None:
            return None
        namespace = ids.namespace(rootfs.user(self.container.rights))
        return Identity(first=ids.first, namespace=namespace, staging=ids.staging, groups=self._pod_sandbox.groups)

    def _check_ids(self) -> None:
        """Raise Rejected if the container names an id that the pod does not have."""
        security = self.container.rights
        named = (rootfs.user(security), rootfs.group(security), *self._pod_sandbox.groups)
        if self._pod_sandbox.ids is not None and max(named) > MAX_ID:
            raise Rejected(
                "CreateContainerConfigError",
                f"User or group id {max(named)} is not available, a pod has the ids from 0 to {MAX_ID}: "
                "change runAsUser, runAsGroup, fsGroup or supplementalGroups.",
            )

    def _env(self, environment: Environment) -> dict[str, str]:
        terminal = {"TERM": "xterm"} if self.container.tty else {}
        hostname = {"HOSTNAME": self._pod_sandbox.pod.hostname}
        if environment.loaded is not None:
            home = image_users.home(rootfs.user(self.container.rights), Path(environment.loaded.root))
            return {"HOME": home} | environment.env | hostname | terminal | dict(self.container.env)
        own = {"HOME": _HOME, "LANG": "C.UTF-8"}
        return environment.env | own | hostname | terminal | dict(self.container.env)

    def _binds(self, environment: Environment) -> tuple[BindMount, ...]:
        read_only = self.container.rights.read_only_root
        return (
            *(
                BindMount(str(self._folder / name), target, read_only)
                for name, target in _own_folders(environment).items()
            ),
            *(BindMount(str(self._folder / name), copied_dir.target) for name, copied_dir in _copies(environment)),
            *self._pod_sandbox.binds,
            *(self._pod_sandbox.volumes.bind(mount) for mount in self.container.mounts),
            BindMount(str(self._folder / "message"), self.container.message_path),
        )

    def _conclude(self, exit_result: ExitResult) -> None:
        if exit_result.failure:
            self._end(code=exit_result.code, reason="StartError", message=exit_result.failure)
            return
        reason = "Completed" if exit_result.code == 0 else "Error"
        if exit_result.code == _KILLED and self._ran_out_of_memory():
            reason = "OOMKilled"
        message = self._termination_message()
        if self._eviction:
            reason, message = EVICTED, self._eviction
        self._end(code=exit_result.code, reason=reason, message=message)

    def _termination_message(self) -> str:
        """Return the text that the program left; empty if the file cannot be read, for the end counts more."""
        with contextlib.suppress(OSError), (self._folder / "message").open("rb") as file:
            return file.read(_MAX_MESSAGE_LENGTH).decode(errors="replace")
        return ""

    def _ran_out_of_memory(self) -> bool:
        """Return whether the kernel killed the program, for its own memory limit or else for the limit of all pods."""
        if self.container.limits.memory is not None:
            return self._cgroup.ran_out_of_memory()
        return self._deps.groups.out_of_memory_kills() > self._kills_before

    def _end(self, *, code: int, reason: str, message: str) -> None:
        started = self._began if reason != "StartError" else None
        self.state = Ended(
            code=code,
            reason=reason,
            message=message,
            started=started,
            ended=self._deps.now(),
            image_id=self._image_id,
        )
        self._deps.journal.end(self.id, self.state)
        self._changed()


def _own_folders(environment: Environment) -> dict[str, str]:
    """Return the folders that a container has for itself. In the root of an image it can write anywhere."""
    return _OWN if environment.loaded is None else {"tmp": _OWN["tmp"]}


def _working_dir(environment: Environment) -> str:
    if environment.loaded is not None:
        return environment.loaded.program.working_dir or "/"
    return environment.copied[0].target if environment.copied else "/"


def _copies(environment: Environment) -> list[tuple[str, CopiedDir]]:
    """Return the copied folders and their names below the run's own folder, outer ones before those inside them."""
    return [(f"copied-{at}", each) for at, each in enumerate(sorted(environment.copied, key=lambda each: each.target))]


def _below_own(environment: Environment) -> Iterator[str]:
    """Yield the mount points of the environment in the container's own folders, which may be read-only later."""
    for name, target in _OWN.items():
        for folder in environment.folders:
            if folder.startswith(f"{target}/"):
                yield name + folder.removeprefix(target)


async def _uncancelled(work: Coroutine[Any, Any, None]) -> None:
    """Wait for a thread even if cancelled: threads cannot be cancelled, and must end before the clean-up."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def argv(container: Container, environment: Environment) -> tuple[str, ...]:
    """Return the command line: `command` replaces entry point and arguments of the image, `args` only the arguments.

    Raises Rejected if nothing is left to run. `args` of an image without an entry point are the whole command line.
    """
    if container.command:
        return container.command + container.args
    if not (environment.entrypoint or environment.default_args or container.args):
        raise Rejected(
            "EntrypointUnknown",
            f"Container {container.name} has no command, and image {container.image} has no entry point on this "
            f"machine: set `command`, or run `skysail image add {shlex.quote(container.image)} --cmd …`.",
        )
    return environment.entrypoint + (container.args or environment.default_args)


def _too_long(command: tuple[str, ...]) -> str:
    longest = max(len(word.encode()) for word in command)
    return (
        f'"{command[0]}" cannot be started: its command and arguments are too long for the kernel (the longest has '
        f"{longest} bytes): put the text into a ConfigMap, and mount that as a file."
    )


def _python_mismatch(image: str, environment: Environment) -> str:
    """Return a warning if the image tag names another Python than its environment has. Empty if not.

    A tag does not choose the Python on this machine.
    """
    named = _PYTHON_TAG.search(image)
    if named is None or not environment.python or f"{environment.python}.".startswith(f"{named[1]}."):
        return ""
    add = f"skysail image add {shlex.quote(image)} --python {named[1]}"
    return (
        f"Image {image} runs in Python {environment.python} on this machine: `{add}` builds one with your Python "
        f"{named[1]}."
    )
