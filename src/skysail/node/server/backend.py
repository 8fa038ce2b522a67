"""What the server needs from the node: the pods that it keeps, and ways to reach into them.

Refusals of `server.errors` become HTTP answers, so their texts are for the user. Errors of `cloud.errors` may come from
every method that talks to the provider.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec

from skysail.cloud.provider import Features, PortConnection, RunId, Session, Usage
from skysail.node.log_store import LogQuery

Manifest = dict[str, Any]


class PodRef(msgspec.Struct, frozen=True, kw_only=True):
    """What a path names. An empty `uid` means whichever pod has that name now; no `container` means the pod itself."""

    namespace: str
    pod: str
    uid: str = ""
    container: str = ""


class ContainerStats(msgspec.Struct, frozen=True, kw_only=True):
    """What one running container has used since `started` (seconds since 1970), and uses now, where that is known."""

    namespace: str
    pod: str
    uid: str
    container: str
    started: float
    usage: Usage
    cores: float | None = None


class NodeStats(msgspec.Struct, frozen=True, kw_only=True):
    """As it was at one moment. The node's own usage is not the sum of its containers': its counter must never fall."""

    started: float
    at: float
    usage: Usage
    cores: float | None = None
    containers: tuple[ContainerStats, ...] = ()


class Backend(Protocol):
    """Every method may be called at any time and by many tasks at once."""

    @property
    def features(self) -> Features:
        """Asked before a connection is upgraded: afterwards there is no way to answer 501."""
        ...

    def pod(self, pod_ref: PodRef) -> str:
        """The UID of the pod there. Raises `NoSuch`."""
        ...

    def run(self, pod_ref: PodRef) -> RunId:
        """The run of that container that goes on now. Raises `NoSuch`, and `NotRunning` with the reason."""
        ...

    async def exec(self, run: RunId, command: tuple[str, ...], *, stdin: bool, tty: bool) -> Session:
        """Start a command beside a run. Raises the provider's `Refused` where it cannot be started."""
        ...

    async def attach(self, run: RunId, *, stdin: bool) -> Session:
        """Talk to the run itself. Whether the end of one user's input is the end of the run's is decided here."""
        ...

    async def dial(self, pod: str, port: int) -> PortConnection:
        """Connect to a port in the pod of this UID. Raises the provider's `Gone` only where the pod is gone."""
        ...

    def logs(self, pod_ref: PodRef, *, previous: bool, log_query: LogQuery) -> AsyncIterator[bytes]:
        """What a container has printed. Raises `NoSuch` and `NotRunning` (it has not started yet) at the call."""
        ...

    def pods(self) -> list[Manifest]:
        """Every pod that is bound to this node, as it is now."""
        ...

    def running_pods(self) -> list[Manifest]:
        """The pods that have a place at the provider, whatever the API server says of them."""
        ...

    async def stats(self) -> NodeStats: ...
