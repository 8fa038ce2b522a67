"""What the provider needs from outside."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from skysail.base.names import EventReason
from skysail.cloud.provider import Pod, RunId
from skysail.local.bubblewrap.cgroups import CgroupManager
from skysail.local.bubblewrap.host_tools import HostTools
from skysail.local.bubblewrap.isolation import Isolation
from skysail.local.images.environments import Environment
from skysail.local.provider.disk_monitor import DiskMonitor
from skysail.local.provider.run_journal import RunJournal
from skysail.local.storage.volumes import VolumePaths


class Attachment(Protocol):
    """A pod's end of the network. `namespace` is a name for `ip netns`; empty: the hull's own network."""

    @property
    def namespace(self) -> str: ...

    @property
    def address(self) -> str: ...


class Network(Protocol):
    """Raises errors of `cloud.errors`, and `dial` OSError."""

    async def attach(self, pod: Pod) -> Attachment:
        """Called again for the same UID: the same attachment, nothing new."""
        ...

    async def detach(self, uid: str) -> None:
        """Unknown pods are fine."""
        ...

    async def dial(self, address: str, port: int) -> socket.socket: ...


class ImageFinder(Protocol):
    """Slow where an environment must be made first. Raises BuildFailed."""

    async def find(self, image: str, say: Callable[[str], None]) -> Environment | None:
        """None where the image is unknown."""
        ...


class ProviderDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """`tell` makes an event of what the user of a run should know. `name_server` is what pods ask for names.

    `logs` has a folder for each pod, which counts as its ephemeral storage. `disk` evicts pods before the disk is full.
    `allows_host_network`: whether the administrator lets pods share the network of the local cluster.
    """

    tools: HostTools
    groups: CgroupManager
    isolation: Isolation
    network: Network
    images: ImageFinder
    places: VolumePaths
    runs: Path
    journal: RunJournal
    name_server: str
    now: Callable[[], float]
    tell: Callable[[RunId, EventReason, str], None]
    logs: Path | None = None
    disk: DiskMonitor | None = None
    allows_host_network: bool = False
