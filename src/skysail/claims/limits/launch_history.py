"""Launch history of deleted claims, kept so that a crash loop of the operator does not reset the launch limits.

Existing claims record their own launch. So the history is written only after a claim is deleted, at most every few
seconds, and a crash loses only the last seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

import msgspec

from skysail.claims.types import CloudInstance, CloudInstanceSpec
from skysail.kube.api.objects import Object
from skysail.kube.api.rbac import PolicyRule
from skysail.kube.api.resources import CONFIG_MAP
from skysail.kube.client.client import Client
from skysail.kube.client.errors import KubeError, NotFound

NAME = "skysail-launches"
NAMESPACE_POLICY_RULES = (
    PolicyRule(CONFIG_MAP, ("create",)),
    PolicyRule(CONFIG_MAP, ("get", "patch"), names=(NAME,)),
)
_KEPT = timedelta(hours=1)
_RETRY_SECONDS = 10.0

log = logging.getLogger(__name__)


class LaunchRecord(msgspec.Struct, frozen=True):
    at: datetime
    spec: CloudInstanceSpec


class _Page(Object, frozen=True, gc=False):
    data: dict[str, str] = msgspec.field(default_factory=dict)


class LaunchHistory:
    """Launch history of the leader, in a ConfigMap in the operator's namespace."""

    def __init__(self, client: Client, namespace: str, now: Callable[[], datetime]) -> None:
        self._client = client
        self._namespace = namespace
        self._now = now
        self._launches: list[LaunchRecord] = []
        self._news = asyncio.Event()

    async def read(self) -> list[LaunchRecord]:
        """Read the launches that earlier processes wrote. An unreadable history counts as empty and stops nothing."""
        try:
            page = await self._client.get(CONFIG_MAP, self._namespace, NAME, _Page)
            written = msgspec.json.decode(page.data.get("launches", "[]"), type=list[LaunchRecord])
        except NotFound:
            written = []
        except (KubeError, msgspec.MsgspecError) as error:
            log.warning("launch history unreadable, starting empty", extra={"why": str(error)})
            written = []
        self._launches = self._recent([*written, *self._launches])
        return self._launches

    def claim_changed(self, old: CloudInstance | None, new: CloudInstance | None) -> None:
        if old is not None and new is None and (at := launch_time(old)):
            # Drop what no limit needs: the history of an hour has to fit into one ConfigMap.
            spec = msgspec.structs.replace(old.spec, candidates=(), nearest_miss="", image="", member_pods=())
            self._launches = self._recent([*self._launches, LaunchRecord(at, spec)])
            self._news.set()

    async def run(self) -> None:
        """Write the history after changes, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            await asyncio.sleep(_RETRY_SECONDS)
            self._launches = self._recent(self._launches)
            try:
                await self._write({"launches": msgspec.json.encode(self._launches).decode()})
            except KubeError as error:
                log.info("launch history write failed, retried", extra={"why": str(error)})
                self._news.set()

    async def _write(self, data: dict[str, str]) -> None:
        try:
            await self._client.merge_patch(CONFIG_MAP, self._namespace, NAME, {"data": data}, _Page)
        except NotFound:
            metadata = {"name": NAME, "namespace": self._namespace}
            manifest = {"apiVersion": CONFIG_MAP.api_version, "kind": CONFIG_MAP.kind, "metadata": metadata}
            await self._client.create(CONFIG_MAP, {**manifest, "data": data}, _Page)

    def _recent(self, launches: Iterable[LaunchRecord]) -> list[LaunchRecord]:
        """Return recent launches without duplicates: a standby sees the same deletions that the leader writes down."""
        since = self._now() - _KEPT
        launched = {
            (launch_record.spec.owner.uid, launch_record.spec.launch, launch_record.at): launch_record
            for launch_record in launches
        }
        return [launch_record for launch_record in launched.values() if launch_record.at > since]


def launch_time(claim: CloudInstance) -> datetime | None:
    status = claim.status
    at = status.launching.at if status.launching else status.start_time
    return datetime.fromisoformat(at) if at else None
