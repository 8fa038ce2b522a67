"""Interface between the server and the node: pods, logs, exec, attach, port connections, statistics.

Each `HttpError` of `server.errors` becomes an HTTP response, so its message is for the user. Every method that calls
the provider may raise errors of `cloud.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec

from skysail.cloud.provider import Features, PortConnection, RunId, Session, Usage
from skysail.node.log_store import LogQuery

Manifest = dict[str, Any]


class PodRef(msgspec.Struct, frozen=True, kw_only=True):
    """Pod and container in the path of a request. An empty `uid` matches the current pod of that name.

    An empty `container` means the pod itself.
    """

    namespace: str
    pod: str
    uid: str = ""
    container: str = ""


class ContainerStats(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of one running container since `started` (seconds since 1970), and its current CPU rate.

    Both are None if unknown.
    """

    namespace: str
    pod: str
    uid: str
    container: str
    started: float
    usage: Usage | None = None
    cores: float | None = None


class NodeStats(msgspec.Struct, frozen=True, kw_only=True):
    """Usage at one moment, as far as the provider measures it.

    The node's usage includes ended containers, because its counter must never decrease.
    """

    started: float
    at: float
    usage: Usage | None = None
    cores: float | None = None
    containers: tuple[ContainerStats, ...] = ()


class Backend(Protocol):
    """The node, as the server sees it. Methods may be called at any time, by many tasks at once."""

    @property
    def features(self) -> Features:
        """Features of the provider. Checked before a connection is upgraded, because 501 is impossible afterwards."""
        ...

    def pod(self, pod_ref: PodRef) -> str:
        """Return the UID of the pod. Raises `NotFound`."""
        ...

    def run(self, pod_ref: PodRef) -> RunId:
        """Return the current run of the container. Raises `NotFound`, or `NotRunning` with the reason."""
        ...

    async def exec(self, run: RunId, command: tuple[str, ...], *, stdin: bool, tty: bool) -> Session:
        """Start a command in the container of a run. Raises the provider's `Rejected` if it cannot be started."""
        ...

    async def attach(self, run: RunId, *, stdin: bool) -> Session:
        """Attach to the run itself. The backend decides whether the end of a user's input closes the run's stdin."""
        ...

    async def dial(self, pod: str, port: int) -> PortConnection:
        """Connect to a port in the pod with this UID. Raises the provider's `Gone` only if the pod does not exist."""
        ...

    def logs(self, pod_ref: PodRef, *, previous: bool, log_query: LogQuery) -> AsyncIterator[bytes]:
        """Yield the log of a container. The call itself raises `NotFound`, or `NotRunning` before the first start."""
        ...

    def pods(self) -> list[Manifest]:
        """Return all pods bound to this node."""
        ...

    def running_pods(self) -> list[Manifest]:
        """Return all pods with a sandbox at the provider, in any phase."""
        ...

    async def stats(self) -> NodeStats: ...
