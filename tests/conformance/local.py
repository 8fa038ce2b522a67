"""The provider `local` for tests: real sandboxes, on the machine's own network."""

from __future__ import annotations

import functools
import os
import socket
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from skysail.local.addresses import RUN_FOLDER
from skysail.local.bubblewrap.cgroups import CgroupManager
from skysail.local.bubblewrap.host_tools import HostTools
from skysail.local.bubblewrap.isolation import Isolation
from skysail.local.cluster import syscalls
from skysail.local.images.environments import open_environments
from skysail.local.provider.dependencies import ProviderDependencies
from skysail.local.provider.provider import LocalProvider
from skysail.local.provider.run_journal import RunJournal
from skysail.local.storage.volumes import VolumePaths

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from skysail.base.names import EventReason
    from skysail.cloud.provider import Pod, RunId
    from skysail.local.provider.dependencies import Network


@functools.cache
def default_isolation() -> Isolation:
    """As a node's agent has it: with the ids of pods where we are root, in mounts that the machine does not see."""
    if os.geteuid() == 0 and not Path(RUN_FOLDER).exists():
        syscalls.unshare(syscalls.NEWNS)
        syscalls.make_mounts_private()
    with tempfile.TemporaryDirectory() as disks:
        return Isolation.detect(HostTools.find(os.environ["PATH"]), Path("/mnt"), Path(disks))


class Attachment(msgspec.Struct, frozen=True):
    namespace: str
    address: str


class OwnNetwork:
    """No network of its own: every pod is at loopback."""

    async def attach(self, pod: Pod) -> Attachment:
        return Attachment("", "127.0.0.1")

    async def detach(self, uid: str) -> None:
        pass

    async def dial(self, address: str, port: int) -> socket.socket:
        line = socket.create_connection((address, port))
        line.setblocking(False)
        return line


@asynccontextmanager
async def local_provider(
    folder: Path,
    groups: CgroupManager | None = None,
    *,
    network: Network | None = None,
    isolation: Isolation | None = None,
    allowed: tuple[Path, ...] = (),
    record: Callable[[RunId, EventReason, str], None] = lambda run, reason, note: None,
) -> AsyncIterator[LocalProvider]:
    _, environments = open_environments(folder / "home", os.environ)
    provider = LocalProvider(
        ProviderDependencies(
            tools=HostTools.find(os.environ["PATH"]),
            groups=groups or CgroupManager({}, "tests"),
            isolation=isolation or default_isolation(),
            network=network or OwnNetwork(),
            images=environments,
            volume_paths=VolumePaths(
                folder=folder / "volumes",
                memory=folder / "memory",
                disks=folder / "disks",
                allowed=(folder / "allowed", *allowed),
            ),
            runs=folder / "runs",
            journal=RunJournal(folder / "journal"),
            name_server="10.244.0.1",
            now=time.time,
            record=record,
        )
    )
    try:
        yield provider
    finally:
        await provider.close()
