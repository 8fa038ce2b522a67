"""The Lease that shows that a node is alive. Any process that could serve the node may renew it.

The process that serves the node renews the Lease at a fixed interval. Standby processes read it less often, and renew
it only if it has not changed since their last read, so that the node stays alive while another process takes over. No
clocks are compared: a Lease that has not changed between two reads is outdated, whatever its time says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import msgspec

from skysail.kube.api.objects import Object
from skysail.kube.api.rbac import PolicyRule
from skysail.kube.api.resources import LEASE, NODE
from skysail.kube.client.client import Client
from skysail.kube.client.errors import AlreadyExists, KubeError, NotFound
from skysail.kube.events import micro_time

NAMESPACE = "kube-node-lease"
_SECONDS = 40
_RENEW_SECONDS = 10.0
# Two reads must fit into the Lease's duration, and a renewal of a busy owner must fit between two reads.
_POLL_SECONDS = 15.0
_RETRY_SECONDS = 1.0

LEASE_POLICY_RULES = (PolicyRule(LEASE, ("create", "get", "patch")),)

log = logging.getLogger(__name__)


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    renew_time: str = ""


class _Lease(Object, frozen=True):
    spec: _Spec = _Spec()


class NodeLease:
    """The Lease of one node, as one process renews it."""

    def __init__(self, client: Client, node: str, now: Callable[[], datetime]) -> None:
        self._client = client
        self._node = node
        self._now = now
        self._seen = ""

    async def renew_forever(self) -> None:
        """Renew the Lease, and create it if it is missing, until cancelled: for the process that serves the node."""
        await self._repeat(self._renew, _RENEW_SECONDS)

    async def stand_by(self) -> None:
        """Renew the Lease if no other process does, until cancelled: for a process that could serve the node."""
        await self._repeat(self._renew_if_unchanged, _POLL_SECONDS)

    async def _repeat(self, step: Callable[[], Awaitable[None]], interval: float) -> None:
        while True:
            try:
                await step()
            except (NotFound, AlreadyExists) as error:
                log.debug("node lease missing or just created", extra={"node": self._node, "why": str(error)})
                await asyncio.sleep(_RETRY_SECONDS)
            except KubeError as error:
                log.warning("node lease not renewed", extra={"node": self._node, "why": str(error)})
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                await asyncio.sleep(interval)

    async def _renew_if_unchanged(self) -> None:
        lease = await self._client.get(LEASE, NAMESPACE, self._node, _Lease)
        if lease.spec.renew_time == self._seen:
            await self._renew()
        else:
            self._seen = lease.spec.renew_time

    async def _renew(self) -> None:
        now = micro_time(self._now())
        try:
            patch = {"spec": {"renewTime": now}}
            renewed = await self._client.merge_patch(LEASE, NAMESPACE, self._node, patch, _Lease)
        except NotFound:
            node = await self._client.get(NODE, "", self._node, Object)
            renewed = await self._client.create(LEASE, _manifest(node, now), _Lease)
        self._seen = renewed.spec.renew_time


def _manifest(node: Object, now: str) -> dict[str, Any]:
    name = node.metadata.name
    owner = {"apiVersion": NODE.api_version, "kind": NODE.kind, "name": name, "uid": node.metadata.uid}
    return {
        "apiVersion": LEASE.api_version,
        "kind": LEASE.kind,
        "metadata": {"name": name, "namespace": NAMESPACE, "ownerReferences": [owner]},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": _SECONDS, "renewTime": now},
    }
