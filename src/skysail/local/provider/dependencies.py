"""Dependencies of the provider `local`."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import msgspec

from skysail.base.names import EventReason
from skysail.cloud.provider import Pod, RunId
from skysail.local.bubblewrap.cgroups import CgroupManager
from skysail.local.bubblewrap.host_tools import HostTools
from skysail.local.bubblewrap.isolation import Isolation
from skysail.local.images.environments import Environment
from skysail.local.images.loaded_images import LoadedImage
from skysail.local.provider.disk_monitor import DiskMonitor
from skysail.local.provider.run_journal import RunJournal
from skysail.local.storage.volumes import VolumePaths


class Attachment(Protocol):
    """Network of one pod. `namespace` is a name for `ip netns`; empty: the network of the local cluster."""

    @property
    def namespace(self) -> str: ...

    @property
    def address(self) -> str: ...


class Network(Protocol):
    """Network of all pods. Raises errors of `cloud.errors`; `dial` raises OSError."""

    async def attach(self, pod: Pod) -> Attachment:
        """Attach a pod. Idempotent: returns the same attachment for the same UID."""
        ...

    async def detach(self, uid: str) -> None:
        """Detach a pod. Does nothing for unknown pods."""
        ...

    async def dial(self, address: str, port: int) -> socket.socket: ...


class ImageFinder(Protocol):
    """Environments by image name. Slow if an environment must be built first. Raises BuildFailed."""

    async def find(self, image: str, report: Callable[[str], None]) -> Environment | None:
        """Return the environment of an image. Returns None if no rule matches the image."""
        ...

    def in_use(self, loaded: LoadedImage) -> AbstractContextManager[None]:
        """Keep a loaded image until the end of the block. Raises OSError if it was removed."""
        ...


class ProviderDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """Dependencies of the provider `local`.

    `record` records an event for the pod of a run. `name_server` is the DNS server of the pods.
    `show_progress` shows the newest step of an image that is being built in the status of the pod.
    `logs` has a folder for each pod, which counts as its ephemeral storage. `disk` evicts pods before the disk is full.
    `allows_host_network`: whether the administrator lets pods share the network of the local cluster.
    """

    tools: HostTools
    groups: CgroupManager
    isolation: Isolation
    network: Network
    images: ImageFinder
    volume_paths: VolumePaths
    runs: Path
    journal: RunJournal
    name_server: str
    now: Callable[[], float]
    record: Callable[[RunId, EventReason, str], None]
    show_progress: Callable[[RunId, str], None] = lambda _run, _step: None
    logs: Path | None = None
    disk: DiskMonitor | None = None
    allows_host_network: bool = False
