"""Executor of actions: check the fence, count the effect, execute it, and cache the reply."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Iterator
from typing import Any, Protocol, assert_never

import msgspec

from skysail.base.names import Annotation, EventReason, Label
from skysail.core.actions import (
    Action,
    Apply,
    Bind,
    Create,
    Delete,
    DeleteCloudVolume,
    Event,
    LaunchInstance,
    Owner,
    PatchMetadata,
    PatchSpec,
    PatchStatus,
    SetFinalizers,
    SetOwner,
    TerminateInstance,
)
from skysail.core.drift import DriftDetector
from skysail.core.errors import Stale
from skysail.core.fence import Fence, Fenced
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import NODE, Resource
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import FIELD_MANAGER, Client, Manifest
from skysail.kube.client.errors import AlreadyExists, Forbidden, NotFound, ReplyLost

log = logging.getLogger(__name__)

# Maximum time between the status write and the launch. Another replica takes a claim over only after much longer.
_TICKET_SECONDS = 10.0

# Object by kind and key, because objects of two kinds may have the same name.
ObjectRef = tuple[Resource, Key]


class NameConflict(Exception):
    """The name of a child is taken by an object that Skysail does not own. A user has to resolve the conflict."""


class CrossNamespace(Exception):
    """An action would write to another namespace than the one of its root object. Always a defect of a plan."""


class CacheRegistry:
    """Caches of this process by kind. Replies to writes go into them, so that the next plan sees its own writes."""

    def __init__(self, *caches: Cache[Any]) -> None:
        self._by_resource: dict[Resource, Cache[Any]] = {cache.resource: cache for cache in caches}

    def get(self, resource: Resource) -> Cache[Any] | None:
        return self._by_resource.get(resource)

    def __iter__(self) -> Iterator[Cache[Any]]:
        return iter(self._by_resource.values())

    def add(self, cache: Cache[Any]) -> None:
        self._by_resource[cache.resource] = cache


class CloudCalls(Protocol):
    """Accounts of all clouds of this process."""

    def launch(self, action: LaunchInstance) -> None:
        """Start the launch call in the background. The next snapshot shows its outcome. Never blocks."""
        ...

    def terminate(self, action: TerminateInstance) -> None:
        """Start one terminate call in the background. Never blocks, so that no cloud delays another.

        The instance counts as terminated when a listing confirms it.
        """
        ...

    def delete_volume(self, action: DeleteCloudVolume) -> None:
        """Start one deletion of a volume in the background. Never blocks. The next snapshot shows its outcome."""
        ...


class Executor:
    """Executor shared by all controllers of a process. `clouds` is needed only for launches."""

    def __init__(
        self, client: Client, cache_registry: CacheRegistry, fence: Fence, cloud_calls: CloudCalls | None = None
    ) -> None:
        self._client = client
        self._cache_registry = cache_registry
        self._fence = fence
        self.clouds = cloud_calls
        self._unknown_writes: dict[ObjectRef, set[ObjectRef]] = {}
        self._drift = DriftDetector(client)
        self._news: dict[ObjectRef, list[Event]] = {}
        self.effects = 0

    async def resolve_unknown_writes(self, root: ObjectRef) -> None:
        """Read every object of this root whose last write has an unknown outcome, so that the plan sees the result."""
        for written in list(self._unknown_writes.get(root, ())):
            await self._get_live(*written)
            self._unknown_writes[root].discard(written)
        if not self._unknown_writes.get(root, True):
            del self._unknown_writes[root]

    def is_outdated(self, resource: Resource, root: Object) -> bool:
        """Return whether the cache shows that the object was deleted, recreated or marked for deletion since the plan.

        A reconcile may take long. Actions executed after the object is gone would leave children behind.
        """
        cache = self._cache_registry.get(resource)
        if cache is None:
            return False
        now = cache.get(root.metadata.key)
        was = root.metadata
        return now is None or (now.metadata.uid, now.metadata.is_deleting) != (was.uid, was.is_deleting)

    async def execute(self, root: ObjectRef, action: Action) -> Object | None:  # noqa: C901, PLR0911 (one per action)
        """Execute one action. Returns the written object, or None if nothing was written or the object is deleted.

        Raises CrossNamespace if the action is about an object in another namespace than the root.
        """
        _refuse_other_namespace(root, action)
        match action:
            case Apply() | Create():
                return await self._apply(root, action)
            case Delete():
                return await self._delete(root, action)
            case SetFinalizers():
                return await self._patch(root, "finalizers", action, metadata={"finalizers": list(action.finalizers)})
            case PatchSpec():
                return await self._patch(root, "patch", action, spec=action.spec)
            case PatchStatus():
                return await self._patch_status(root, action)
            case PatchMetadata():
                added = {"labels": action.labels, "annotations": action.annotations}
                return await self._patch(root, "patch metadata", action, metadata=added)
            case SetOwner():
                owners = [] if action.owner is None else [_reference(action.owner)]
                return await self._patch(root, "set owner", action, metadata={"ownerReferences": owners})
            case Bind():
                await self._bind(root, action)
            case LaunchInstance():
                await self._launch(action)
            case TerminateInstance():
                self.terminate_instance(action)
            case DeleteCloudVolume():
                self._delete_cloud_volume(action)
            case _:
                assert_never(action)
        return None

    def pop_events(self, root: ObjectRef) -> list[Event]:
        """Return and clear the events about drift corrections of this root, which no plan contains."""
        return self._news.pop(root, [])

    async def write_status(self, resource: Resource, object_: Object, status: msgspec.Struct) -> Object:
        """Replace the whole status of an object that is unchanged since it was read."""
        metadata = object_.metadata
        manifest = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {
                "name": metadata.name,
                "namespace": metadata.namespace,
                "uid": metadata.uid,
                "resourceVersion": metadata.resource_version,
            },
            "status": msgspec.to_builtins(status),
        }
        self._start_effect("status", resource, metadata.key)
        with self._tracking_unknown_write((resource, metadata.key), resource, metadata.key):
            return self._record_write(
                resource,
                await self._client.replace(resource, manifest, self._type(resource), subresource="status"),
            )

    async def _apply(self, root: ObjectRef, action: Apply | Create) -> Object | None:
        resource = action.resource
        manifest = complete_manifest(action.manifest, action.owner)
        key = Key(manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"])
        cache = self._cache_registry.get(resource)
        existing = None if cache is None else cache.get(key)
        if existing is None and cache is not None and isinstance(action, Create):
            # The cache has no such object, so create it without reading first; the API server rejects a duplicate.
            try:
                return await self._create(root, resource, key, manifest)
            except (AlreadyExists, Forbidden):  # quota is checked before existence
                existing = await self._get_live(resource, key)
                if existing is None:
                    raise
        elif existing is None:
            existing = await self._get_live(resource, key)
        if existing is not None:
            if not _is_released(existing, action, manifest):
                _reject_foreign(resource, existing, action.owner)
            if existing.metadata.is_deleting:
                # The name is free once the object is deleted; the deletion event triggers the next reconcile.
                return None
            manifest["metadata"]["uid"] = existing.metadata.uid
            if isinstance(action, Create) or await self._is_up_to_date(action, existing, manifest):
                return None
        self._start_effect("apply", resource, key)
        with self._tracking_unknown_write(root, resource, key):
            applied = await self._client.apply(resource, manifest, self._type(resource))
        self._drift.mark_in_sync(resource, applied)
        if existing is not None and isinstance(action, Apply) and _is_last_applied(existing, manifest):
            self._drift.record_correction(resource, applied)
            self._news.setdefault(root, []).append(_drift_event(action))
        return self._record_write(resource, applied)

    async def _is_up_to_date(self, action: Apply, existing: Object, manifest: Manifest) -> bool:
        """Return whether the child needs no write: applied from this manifest and not drifted."""
        if action.only_if_absent:
            return True
        if not _is_last_applied(existing, manifest):
            return False
        return not action.enforce or not await self._drift.needs_correction(action.resource, existing, manifest)

    async def _create(self, root: ObjectRef, resource: Resource, key: Key, manifest: Manifest) -> Object:
        self._start_effect("create", resource, key)
        with self._tracking_unknown_write(root, resource, key):
            return self._record_write(resource, await self._client.create(resource, manifest, self._type(resource)))

    async def _delete(self, root: ObjectRef, action: Delete) -> Object | None:
        resource, key = action.resource, action.object.metadata.key
        options: dict[str, Any] = {"propagationPolicy": "Foreground"} if action.foreground else {}
        if action.grace_seconds is not None:
            options["gracePeriodSeconds"] = action.grace_seconds
        self._start_effect("delete", resource, key)
        try:
            with self._tracking_unknown_write(root, resource, key):
                left = await self._client.delete(resource, action.object, self._type(resource), options)
        except NotFound:
            left = None
        if left is not None:
            return self._record_write(resource, left)
        cache = self._cache_registry.get(resource)
        if cache is not None:
            cache.mark_deleted(action.object)
        return None

    async def _patch(
        self,
        root: ObjectRef,
        verb: str,
        action: SetFinalizers | PatchSpec | PatchMetadata | SetOwner,
        *,
        metadata: Manifest | None = None,
        spec: Manifest | None = None,
    ) -> Object:
        resource, seen = action.resource, action.object.metadata
        patch = {"metadata": {"uid": seen.uid, "resourceVersion": seen.resource_version, **(metadata or {})}}
        if spec is not None:
            patch["spec"] = spec
        self._start_effect(verb, resource, seen.key)
        with self._tracking_unknown_write(root, resource, seen.key):
            type_ = self._type(resource)
            return self._record_write(
                resource, await self._client.merge_patch(resource, seen.namespace, seen.name, patch, type_)
            )

    async def _patch_status(self, root: ObjectRef, action: PatchStatus) -> Object | None:
        resource, key = action.resource, action.object.metadata.key
        self._start_effect("patch status", resource, key)
        with self._tracking_unknown_write(root, resource, key):
            type_ = self._type(resource)
            return self._record_write(
                resource, await self._client.patch_status(resource, action.object, action.fields, type_)
            )

    async def _bind(self, root: ObjectRef, action: Bind) -> None:
        """Bind a pod. Raises Conflict if the pod has changed or has a node by now."""
        resource, seen = action.resource, action.object.metadata
        manifest = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": seen.name,
                "namespace": seen.namespace,
                "uid": seen.uid,
                "resourceVersion": seen.resource_version,
            },
            "target": {"apiVersion": NODE.api_version, "kind": NODE.kind, "name": action.node},
        }
        price = {} if action.usd_per_hour is None else {"usd_per_hour": action.usd_per_hour}
        self._start_effect("bind", resource, seen.key, node=action.node, provider=action.provider, **price)
        with self._tracking_unknown_write(root, resource, seen.key):
            await self._client.create(resource, manifest, msgspec.Raw, subresource="binding")
        cache = self._cache_registry.get(resource)
        if cache is not None:
            # The cache holds pods without a node: a bound pod has left it, and a late event must not bring it back.
            cache.mark_deleted(action.object)

    async def _launch(self, action: LaunchInstance) -> None:
        """Write the status of the claim, then call the cloud. The write fails if another process has changed the claim.

        The write is a short-lived permit: if this process was delayed after it, Fenced is raised and the next reconcile
        writes a new one.
        """
        assert self.clouds is not None, "only a process with clouds plans launches"
        clock = asyncio.get_running_loop().time
        begun = clock()
        claim = await self.write_status(action.resource, action.object, action.status)
        if clock() - begun > _TICKET_SECONDS or self._changed_since(action.resource, claim):
            raise Fenced(f"claim {claim.metadata.key} changed or was written too slowly, so nothing is launched")
        gpus = action.launch_spec.gpus
        gpu = {} if gpus is None else {"gpu": gpus.type, "gpus": gpus.count}
        self._start_effect(
            "launch", action.resource, claim.metadata.key, provider=action.cloud, size=action.launch_spec.size, **gpu
        )
        self.clouds.launch(msgspec.structs.replace(action, object=claim))

    def _changed_since(self, resource: Resource, seen: Object) -> bool:
        """Return whether the cache has another version of the object."""
        cache = self._cache_registry.get(resource)
        now = None if cache is None else cache.get(seen.metadata.key)
        return now is not None and now.metadata.resource_version != seen.metadata.resource_version

    def terminate_instance(self, action: TerminateInstance) -> None:
        """Ask the cloud to terminate an instance, which may have no claim any more."""
        assert self.clouds is not None, "only a process with clouds plans terminations"
        self._fence.check()
        self.effects += 1
        log.info("end", extra={"provider": action.cloud, "instance": action.instance, "effect": self.effects})
        self.clouds.terminate(action)

    def _delete_cloud_volume(self, action: DeleteCloudVolume) -> None:
        assert self.clouds is not None, "only a process with clouds plans deletions of volumes"
        self._start_effect("delete volume", action.resource, action.object.metadata.key, provider=action.cloud)
        self.clouds.delete_volume(action)

    async def _get_live(self, resource: Resource, key: Key) -> Object | None:
        """Read the object from the API server and update the cache like a watch event."""
        cache = self._cache_registry.get(resource)
        known = None if cache is None else cache.get(key)
        try:
            found = await self._client.get(resource, key.namespace, key.name, self._type(resource))
        except NotFound:
            if cache is not None and known is not None:
                cache.mark_deleted(known)
            return None
        if cache is not None and cache.accepts(found):
            cache.record_write(found)
        return found

    def _start_effect(self, verb: str, resource: Resource, key: Key, **details: Any) -> None:
        self._fence.check()
        self.effects += 1
        log.info(verb, extra={"kind": resource.kind, "object": str(key), "effect": self.effects, **details})

    @contextlib.contextmanager
    def _tracking_unknown_write(self, root: ObjectRef, resource: Resource, key: Key) -> Iterator[None]:
        """Record an unknown outcome if the reply to a write is lost: the next reconcile then reads before it plans."""
        try:
            yield
        except ReplyLost:
            self._unknown_writes.setdefault(root, set()).add((resource, key))
            raise

    def _record_write(self, resource: Resource, written: Object) -> Object:
        cache = self._cache_registry.get(resource)
        if cache is not None:
            cache.record_write(written)
        return written

    def _type(self, resource: Resource) -> type[Object]:
        cache = self._cache_registry.get(resource)
        return Object if cache is None else cache.type


def complete_manifest(manifest: Manifest, owner: Owner | None) -> Manifest:
    """Return the manifest as it is sent: with owner reference, managed-by label and hash annotation."""
    metadata = {
        **manifest["metadata"],
        "labels": {**manifest["metadata"].get("labels", {}), Label.MANAGED_BY: FIELD_MANAGER},
    }
    if owner is not None:
        metadata["ownerReferences"] = [_reference(owner)]
    complete = {**manifest, "metadata": metadata}
    digest = hashlib.sha256(msgspec.json.encode(complete, order="sorted")).hexdigest()[:16]
    metadata["annotations"] = {**metadata.get("annotations", {}), Annotation.LAST_APPLIED_HASH: digest}
    return complete


def _reference(owner: Owner) -> Manifest:
    return {
        "apiVersion": owner.resource.api_version,
        "kind": owner.resource.kind,
        "name": owner.object.metadata.name,
        "uid": owner.object.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _is_last_applied(existing: Object, manifest: Manifest) -> bool:
    """Return whether the object was applied from this manifest and still has the labels that selectors need."""
    applied = (existing.metadata.annotations or {}).get(Annotation.LAST_APPLIED_HASH)
    desired, labels = manifest["metadata"], existing.metadata.labels or {}
    has_labels = all(labels.get(name) == value for name, value in desired["labels"].items())
    return has_labels and applied == desired["annotations"][Annotation.LAST_APPLIED_HASH]


def _drift_event(action: Apply) -> Event:
    kind, name, owner = action.resource.kind, action.manifest["metadata"]["name"], action.owner
    parent = f"{owner.resource.kind} {owner.object.metadata.name}"
    message = f"{kind} {name} was modified and has been restored. Edit {parent} instead."
    return Event(EventReason.DRIFT_CORRECTED, message, warning=True)


def _refuse_other_namespace(root: ObjectRef, action: Action) -> None:
    """Keep a plan that was made from a foreign child inside the namespace of its root.

    Cluster-scoped children have no namespace. A cluster-scoped root may have children anywhere.
    """
    namespace = _namespace(action)
    if root[1].namespace and namespace not in {"", root[1].namespace}:
        raise CrossNamespace(
            f"{type(action).__name__} in namespace {namespace} was planned for {root[0].kind} {root[1]}: nothing was "
            "written. This is a defect of Skysail; report it."
        )


def _namespace(action: Action) -> str:
    """Return the namespace that an action writes to, empty if there is none."""
    match action:
        case Apply() | Create():
            return str(action.manifest["metadata"].get("namespace", ""))
        case TerminateInstance():
            return ""
        case _:
            return action.object.metadata.namespace


def _is_released(existing: Object, action: Apply | Create, manifest: Manifest) -> bool:
    """Return whether the object is the one of this action, which outlives its owner."""
    labels = existing.metadata.labels or {}
    is_same = all(labels.get(name) == value for name, value in manifest["metadata"]["labels"].items())
    return isinstance(action, Create) and action.may_be_released and existing.metadata.controller is None and is_same


def _reject_foreign(resource: Resource, existing: Object, owner: Owner | None) -> None:
    controller = existing.metadata.controller
    if owner is None:
        if (existing.metadata.labels or {}).get(Label.MANAGED_BY) == FIELD_MANAGER:
            return
        raise NameConflict(
            f"{resource.kind} {existing.metadata.name} was not created by Skysail, so it is not used. Delete it."
        )
    if controller is None or controller.uid != owner.object.metadata.uid:
        named = (owner.resource.kind, owner.object.metadata.name)
        if existing.metadata.is_deleting or (controller and (controller.kind, controller.name) == named):
            raise Stale(f"{resource.kind} {existing.metadata.name} of a deleted owner is not deleted yet")
        other = f"{controller.kind} {controller.name}" if controller else "another user or tool"
        raise NameConflict(
            f"{resource.kind} {existing.metadata.name} belongs to {other}, so Skysail does not change it. Delete or "
            f"rename it, or rename this {owner.resource.kind}."
        )
