"""Kubernetes events (events.k8s.io/v1): created once, then counted as a series.

Best effort: a background task writes them, so that no controller waits. Rejected events are dropped.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from skysail.kube.api.objects import Key, Object
from skysail.kube.api.rbac import PolicyRule
from skysail.kube.api.resources import EVENT, Resource
from skysail.kube.client.client import Client
from skysail.kube.client.errors import ApiError, KubeError, NotFound

_MAX_QUEUED = 1000
_MAX_SERIES = 4096
_MAX_NOTE_LENGTH = 1024
# A repeated event within this time increments the series of the first one (kubectl shows "x3 over 10m").
_SERIES_SECONDS = 360.0
# Minimum time between writes of one series, so that a tight loop does not become a stream of writes.
_SERIES_INTERVAL = 30.0

log = logging.getLogger(__name__)

POLICY_RULES = (PolicyRule(EVENT, ("create", "patch")),)


class ObjectEvent(msgspec.Struct, frozen=True, kw_only=True):
    resource: Resource
    object: Object
    reason: str
    note: str
    warning: bool


class _Series:
    """Series of one repeated event."""

    def __init__(self, key: Key, at: float) -> None:
        self.key = key
        self.count = 1
        self.last = at
        self.written = at


class Broadcaster:
    """Queues events and writes them in the background."""

    def __init__(self, client: Client, *, instance: str, now: Callable[[], datetime]) -> None:
        self._client = client
        self._instance = instance
        self._now = now
        self._waiting: asyncio.Queue[ObjectEvent] = asyncio.Queue(_MAX_QUEUED)
        self._known: dict[tuple[str, str, str], _Series] = {}

    def record(self, object_event: ObjectEvent) -> None:
        """Queue an event. Never blocks: if the queue is full, the event is dropped."""
        try:
            self._waiting.put_nowait(object_event)
        except asyncio.QueueFull:
            log.debug("event dropped, queue full", extra={"reason": object_event.reason})

    async def run(self) -> None:
        """Write queued events until cancelled."""
        while True:
            object_event = await self._waiting.get()
            try:
                await self._write(object_event)
            except ApiError as error:
                # Log at debug level: most rejections come from a namespace that is being deleted.
                log.debug("event rejected", extra={"reason": object_event.reason, "why": str(error)})
            except KubeError as error:
                log.info("event write failed, dropped", extra={"reason": object_event.reason, "why": str(error)})

    async def _write(self, object_event: ObjectEvent) -> None:
        at = asyncio.get_running_loop().time()
        identity = (object_event.object.metadata.uid, object_event.reason, object_event.note)
        series = self._known.get(identity)
        if series is None or at - series.last > _SERIES_SECONDS:
            await self._create(object_event, identity, at)
            return
        series.count += 1
        series.last = at
        if at - series.written < _SERIES_INTERVAL:
            return
        series.written = at
        patch = {"series": {"count": series.count, "lastObservedTime": micro_time(self._now())}}
        try:
            await self._client.merge_patch(EVENT, series.key.namespace, series.key.name, patch, Object)
        except NotFound:
            await self._create(object_event, identity, at)

    async def _create(self, object_event: ObjectEvent, identity: tuple[str, str, str], at: float) -> None:
        manifest = self._manifest(object_event)
        await self._client.create(EVENT, manifest, Object)
        metadata = manifest["metadata"]
        self._known[identity] = _Series(Key(metadata["namespace"], metadata["name"]), at)
        if len(self._known) > _MAX_SERIES:
            del self._known[next(iter(self._known))]

    def _manifest(self, object_event: ObjectEvent) -> dict[str, Any]:
        metadata, now = object_event.object.metadata, self._now()
        unique = hashlib.sha256(
            f"{metadata.uid}{object_event.reason}{object_event.note}{now.timestamp()}".encode()
        ).hexdigest()[:16]
        return {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            # Put events of cluster-scoped objects into `default`, where kubectl looks for them.
            "metadata": {"name": f"{metadata.name[:200]}.{unique}", "namespace": metadata.namespace or "default"},
            "eventTime": micro_time(now),
            "reportingController": "skysail.dev/operator",
            "reportingInstance": self._instance[:128],
            "action": "Reconcile",
            "reason": object_event.reason,
            "note": _shortened(object_event.note),
            "type": "Warning" if object_event.warning else "Normal",
            "regarding": {
                "apiVersion": object_event.resource.api_version,
                "kind": object_event.resource.kind,
                "namespace": metadata.namespace or None,
                "name": metadata.name,
                "uid": metadata.uid,
                "resourceVersion": metadata.resource_version,
            },
        }


def micro_time(moment: datetime) -> str:
    """Format a Kubernetes MicroTime: always six digits and a Z."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _shortened(note: str) -> str:
    encoded = note.encode()
    return note if len(encoded) <= _MAX_NOTE_LENGTH else encoded[: _MAX_NOTE_LENGTH - 3].decode(errors="ignore") + "…"
