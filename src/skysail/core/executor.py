"""The only performer of actions: ask the fence, number the effect, do it, remember the server's answer."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Iterator
from typing import Any, Protocol, assert_never

import msgspec

from skysail.base.names import Annotation, Event, Label
from skysail.core.actions import (
    Action,
    Apply,
    Create,
    Delete,
    End,
    Launch,
    Note,
    Owner,
    Patch,
    PatchStatus,
    SetFinalizers,
)
from skysail.core.drift import Drift
from skysail.core.errors import Stale
from skysail.core.fence import Fence, Fenced
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import Resource
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import FIELD_MANAGER, Client, Manifest
from skysail.kube.client.errors import AlreadyExists, Forbidden, NotFound, ReplyLost

log = logging.getLogger(__name__)

# How soon a launch follows the write that allows it. Others take a claim over only after a tick and many listings.
_TICKET_SECONDS = 10.0

# An object, known by its kind and its place: two kinds may have objects of one name.
Root = tuple[Resource, Key]


class NameTaken(Exception):
    """A child's name belongs to an object that is not ours. Only a person can decide which of the two should go."""


class CrossNamespace(Exception):
    """An action would write to another namespace than the one of its root object. Always a defect of a plan."""


class Caches:
    """The caches of this process by kind, so that an effect's answer is known to the next plan."""

    def __init__(self, *caches: Cache[Any]) -> None:
        self._by_resource: dict[Resource, Cache[Any]] = {cache.resource: cache for cache in caches}

    def get(self, resource: Resource) -> Cache[Any] | None:
        return self._by_resource.get(resource)

    def __iter__(self) -> Iterator[Cache[Any]]:
        return iter(self._by_resource.values())

    def add(self, cache: Cache[Any]) -> None:
        self._by_resource[cache.resource] = cache


class Clouds(Protocol):
    """The paid side of all providers, as a process holds it."""

    def launch(self, action: Launch) -> None:
        """Begin the call; what comes of it is seen by the next snapshot. Never blocks."""
        ...

    def end(self, action: End) -> None:
        """Begin to ask, once. Never blocks: an end counts when a listing confirms it, and no cloud delays another."""
        ...


class Performer:
    """Shared by all loops of a process. One that launches nothing needs no `clouds`."""

    def __init__(self, client: Client, caches: Caches, fence: Fence, clouds: Clouds | None = None) -> None:
        self._client = client
        self._caches = caches
        self._fence = fence
        self.clouds = clouds
        self._doubts: dict[Root, set[Root]] = {}
        self._drift = Drift(client)
        self._news: dict[Root, list[Note]] = {}
        self.effects = 0

    async def settle(self, root: Root) -> None:
        """Look at every object of this root whose last write was never answered, so that the plan knows."""
        for doubt in list(self._doubts.get(root, ())):
            await self._look(*doubt)
            self._doubts[root].discard(doubt)
        if not self._doubts.get(root, True):
            del self._doubts[root]

    def moved_on(self, resource: Resource, root: Object) -> bool:
        """Whether the object that a plan was made for is known to be gone, replaced or being deleted since.

        A pass may last: what it was about can end between two of its effects, and the rest would be leftovers.
        """
        cache = self._caches.get(resource)
        if cache is None:
            return False
        now = cache.get(root.metadata.key)
        was = root.metadata
        return now is None or (now.metadata.uid, now.metadata.is_deleting) != (was.uid, was.is_deleting)

    async def perform(self, root: Root, action: Action) -> Object | None:
        """Do one action. Returns the object as it is now, None where nothing was written or nothing is left.

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
            case Patch():
                return await self._patch(root, "patch", action, spec=action.spec)
            case PatchStatus():
                return await self._patch_status(root, action)
            case Launch():
                await self._launch(action)
            case End():
                self.end(action)
            case _:
                assert_never(action)
        return None

    def news(self, root: Root) -> list[Note]:
        """What happened to children of this root that no plan knows of. Each is told once."""
        return self._news.pop(root, [])

    async def report(self, resource: Resource, object_: Object, status: msgspec.Struct) -> Object:
        """Write the whole status of an object that has not changed since it was seen."""
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
        self._begin("status", resource, metadata.key)
        with self._doubting((resource, metadata.key), resource, metadata.key):
            return self._remember(
                resource,
                await self._client.replace(resource, manifest, self._type(resource), subresource="status"),
            )

    async def _apply(self, root: Root, action: Apply | Create) -> Object | None:
        resource = action.resource
        manifest = finished(action.manifest, action.owner)
        key = Key(manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"])
        cache = self._caches.get(resource)
        existing = None if cache is None else cache.get(key)
        if existing is None and cache is not None and isinstance(action, Create):
            # As good as certain that it is new, and the server says so where it is not: nobody has to look first.
            try:
                return await self._make(root, resource, key, manifest)
            except (AlreadyExists, Forbidden):  # a quota is asked before anybody looks whether it is there
                existing = await self._look(resource, key)
                if existing is None:
                    raise
        elif existing is None:
            existing = await self._look(resource, key)
        if existing is not None:
            _refuse_foreign(resource, existing, action.owner)
            if existing.metadata.is_deleting:
                # It must be gone before one of its name can be made; its end brings the next pass.
                return None
            manifest["metadata"]["uid"] = existing.metadata.uid
            if isinstance(action, Create) or await self._is_right(action, existing, manifest):
                return None
        self._begin("apply", resource, key)
        with self._doubting(root, resource, key):
            applied = await self._client.apply(resource, manifest, self._type(resource))
        self._drift.note(resource, applied)
        if existing is not None and isinstance(action, Apply) and _is_applied(existing, manifest):
            self._drift.put_back(resource, applied)
            self._news.setdefault(root, []).append(_put_back(action))
        return self._remember(resource, applied)

    async def _is_right(self, action: Apply, existing: Object, manifest: Manifest) -> bool:
        """Whether nothing has to be written, because it was, and nobody has changed it since."""
        if action.only_once:
            return True
        if not _is_applied(existing, manifest):
            return False
        return not action.is_kept or not await self._drift.is_there(action.resource, existing, manifest)

    async def _make(self, root: Root, resource: Resource, key: Key, manifest: Manifest) -> Object:
        self._begin("create", resource, key)
        with self._doubting(root, resource, key):
            return self._remember(resource, await self._client.create(resource, manifest, self._type(resource)))

    async def _delete(self, root: Root, action: Delete) -> Object | None:
        resource, key = action.resource, action.object.metadata.key
        options: dict[str, Any] = {"propagationPolicy": "Foreground"} if action.children_first else {}
        if action.grace_seconds is not None:
            options["gracePeriodSeconds"] = action.grace_seconds
        self._begin("delete", resource, key)
        try:
            with self._doubting(root, resource, key):
                left = await self._client.delete(resource, action.object, self._type(resource), options)
        except NotFound:
            left = None
        if left is not None:
            return self._remember(resource, left)
        cache = self._caches.get(resource)
        if cache is not None:
            cache.ended(action.object)
        return None

    async def _patch(
        self,
        root: Root,
        verb: str,
        action: SetFinalizers | Patch,
        *,
        metadata: Manifest | None = None,
        spec: Manifest | None = None,
    ) -> Object:
        resource, seen = action.resource, action.object.metadata
        patch = {"metadata": {"uid": seen.uid, "resourceVersion": seen.resource_version, **(metadata or {})}}
        if spec is not None:
            patch["spec"] = spec
        self._begin(verb, resource, seen.key)
        with self._doubting(root, resource, seen.key):
            type_ = self._type(resource)
            return self._remember(
                resource, await self._client.merge_patch(resource, seen.namespace, seen.name, patch, type_)
            )

    async def _patch_status(self, root: Root, action: PatchStatus) -> Object | None:
        resource, key = action.resource, action.object.metadata.key
        self._begin("patch status", resource, key)
        with self._doubting(root, resource, key):
            type_ = self._type(resource)
            return self._remember(
                resource, await self._client.patch_status(resource, action.object, action.fields, type_)
            )

    async def _launch(self, action: Launch) -> None:
        """The claim says so first, by a write that fails where another process has decided otherwise since.

        What that write proved is true for a while only: who was held up after it has to write it anew.
        """
        assert self.clouds is not None, "only a process with clouds plans launches"
        clock = asyncio.get_running_loop().time
        begun = clock()
        claim = await self.report(action.resource, action.object, action.status)
        if clock() - begun > _TICKET_SECONDS or self._has_changed(action.resource, claim):
            raise Fenced(f"{claim.metadata.key} was written too slowly to call the cloud for it")
        self._begin("launch", action.resource, claim.metadata.key)
        self.clouds.launch(msgspec.structs.replace(action, object=claim))

    def _has_changed(self, resource: Resource, seen: Object) -> bool:
        """Whether it is known by now that somebody has changed it since."""
        cache = self._caches.get(resource)
        now = None if cache is None else cache.get(seen.metadata.key)
        return now is not None and now.metadata.resource_version != seen.metadata.resource_version

    def end(self, action: End) -> None:
        """Ask a cloud to end an instance, also one that belongs to no object any more."""
        assert self.clouds is not None, "only a process with clouds plans ends"
        self._fence.check()
        self.effects += 1
        log.info("end", extra={"cloud": action.cloud, "instance": action.instance, "effect": self.effects})
        self.clouds.end(action)

    async def _look(self, resource: Resource, key: Key) -> Object | None:
        """A live read. Where the object belongs into a cache, its answer is as good as a watch event."""
        cache = self._caches.get(resource)
        known = None if cache is None else cache.get(key)
        try:
            found = await self._client.get(resource, key.namespace, key.name, self._type(resource))
        except NotFound:
            if cache is not None and known is not None:
                cache.ended(known)
            return None
        if cache is not None and cache.takes(found):
            cache.wrote(found)
        return found

    def _begin(self, verb: str, resource: Resource, key: Key) -> None:
        self._fence.check()
        self.effects += 1
        log.info(verb, extra={"kind": resource.kind, "object": str(key), "effect": self.effects})

    @contextlib.contextmanager
    def _doubting(self, root: Root, resource: Resource, key: Key) -> Iterator[None]:
        """A write without an answer may have happened: note it, so that the next pass looks before it plans."""
        try:
            yield
        except ReplyLost:
            self._doubts.setdefault(root, set()).add((resource, key))
            raise

    def _remember(self, resource: Resource, written: Object) -> Object:
        cache = self._caches.get(resource)
        if cache is not None:
            cache.wrote(written)
        return written

    def _type(self, resource: Resource) -> type[Object]:
        cache = self._caches.get(resource)
        return Object if cache is None else cache.type


def finished(manifest: Manifest, owner: Owner) -> Manifest:
    """The manifest as it is sent: with its owner, our label, and the hash that tells whether it changed."""
    metadata = {
        **manifest["metadata"],
        "labels": {**manifest["metadata"].get("labels", {}), Label.MANAGED_BY: FIELD_MANAGER},
        "ownerReferences": [_reference(owner)],
    }
    complete = {**manifest, "metadata": metadata}
    digest = hashlib.sha256(msgspec.json.encode(complete, order="sorted")).hexdigest()[:16]
    metadata["annotations"] = {**metadata.get("annotations", {}), Annotation.APPLIED: digest}
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


def _is_applied(existing: Object, manifest: Manifest) -> bool:
    """Whether it was made from the same manifest, and still has the labels that we find it and know it by."""
    applied = (existing.metadata.annotations or {}).get(Annotation.APPLIED)
    wanted, labels = manifest["metadata"], existing.metadata.labels or {}
    has_labels = all(labels.get(name) == value for name, value in wanted["labels"].items())
    return has_labels and applied == wanted["annotations"][Annotation.APPLIED]


def _put_back(action: Apply) -> Note:
    kind, name, owner = action.resource.kind, action.manifest["metadata"]["name"], action.owner
    message = (
        f"Somebody changed {kind} {name}: it is put back as {owner.resource.kind} {owner.object.metadata.name} wants "
        "it. Change that instead."
    )
    return Note(Event.PUT_BACK, message, warning=True)


def _refuse_other_namespace(root: Root, action: Action) -> None:
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
        case End():
            return ""
        case _:
            return action.object.metadata.namespace


def _refuse_foreign(resource: Resource, existing: Object, owner: Owner) -> None:
    controller = existing.metadata.controller
    if controller is None or controller.uid != owner.object.metadata.uid:
        named = (owner.resource.kind, owner.object.metadata.name)
        if existing.metadata.is_deleting or (controller and (controller.kind, controller.name) == named):
            raise Stale(f"{resource.kind} {existing.metadata.name} belongs to a deleted object of the same name")
        whose = f"belongs to {controller.kind} {controller.name}" if controller else "was made by somebody else"
        raise NameTaken(
            f"{resource.kind} {existing.metadata.name} {whose}, so Skysail leaves it alone. Delete or rename it, or "
            f"rename this {owner.resource.kind}."
        )
