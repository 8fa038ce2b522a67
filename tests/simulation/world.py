"""What the simulated API server remembers, and the rules by which a write changes it.

A stored object is never changed: each write stores a new one under a new version. So a list, a watch and a dry run
can hold on to what they saw. A `World` is made inside a running event loop, whose time is its time.
"""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from skysail.kube.api.resources import CRD, JOB, NAMESPACE, POD, Resource
from tests.simulation import kinds, ownership, statuses
from tests.simulation.garbage_collector import GarbageCollector
from tests.simulation.kinds import Kind
from tests.simulation.ownership import Manager, Object, Owners
from tests.simulation.pagination import Pages
from tests.simulation.watches import History
from tests.simulation.writes import DeleteOptions, Preconditions, Write

if TYPE_CHECKING:
    from collections.abc import Iterable

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_SERVER_SET = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
_COLLECTORS_FINALIZERS = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}
_POD_GRACE = 30

Key = tuple[str, str]


class Resident(Protocol):
    """A controller that is part of the cluster. It acts later, never while it is told."""

    def noticed(self, obj: Object, *, gone: bool) -> None: ...


class World:
    """One cluster. Any number of clients share it."""

    def __init__(self, resources: Iterable[Resource] = (), *, seed: int = 0) -> None:
        self.version = 0
        self.history = History(self)
        self.pages = Pages(self)
        self.objects: dict[Resource, dict[Key, Object]] = {}
        self.kinds: dict[Resource, Kind] = {}
        self._random = random.Random(seed)
        # The controllers that live in the cluster, whoever else does. A scenario may add more.
        self.janitor = GarbageCollector(self)
        self.residents: list[Resident] = [self.janitor]
        self._uids = 0
        for kind in [*kinds.built_in(), *map(kinds.of, resources)]:
            self.serve(kind)
        for name in ("default", "kube-system"):
            self.create(self.kinds[NAMESPACE], {"metadata": {"name": name}}, Write(Manager("kube-apiserver", "Update")))

    def serve(self, kind: Kind) -> None:
        """Nothing that happened before a kind was served can be watched."""
        self.kinds[kind.resource] = kind
        self.objects.setdefault(kind.resource, {})
        self.history.begin(kind.resource)

    def stop_serving(self, resource: Resource) -> None:
        for obj in list(self.objects[resource].values()):
            self.commit(self.kinds[resource], obj, None, "apiextensions-apiserver")
        self.history.end(resource)
        del self.kinds[resource], self.objects[resource]

    def compact(self) -> None:
        """Forget the past, as etcd does every few minutes."""
        self.history.compact()
        self.pages.forget()

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        try:
            return self.objects[kind.resource][namespace, name]
        except KeyError:
            raise statuses.not_found(kind.resource, name) from None

    def create(self, kind: Kind, manifest: Object, write: Write) -> Object:
        obj = copied(manifest)
        metadata = obj["metadata"]
        if not metadata.get("name"):
            metadata["name"] = self._generated_name(kind, metadata)
        self._check_namespace(kind, metadata)
        if metadata.get("resourceVersion"):
            raise statuses.bad_request("resourceVersion should not be set on objects to be created")
        if (metadata.get("namespace", ""), metadata["name"]) in self.objects[kind.resource]:
            raise statuses.already_exists(kind.resource, metadata["name"])
        self._initialise(kind, obj, write)
        _tidy(kind, obj)
        self._manage(kind, obj, ownership.after_create(write.manager, obj))
        return self._store(kind, None, obj, write)

    def replace(self, kind: Kind, live: Object, wanted: Object, write: Write, owners: Owners | None = None) -> Object:
        """Write a whole object or its status. `owners` are known where server-side apply worked them out."""
        self.check_expectations(kind, live, wanted)
        new = self.blend(kind, live, wanted, write.subresource)
        _tidy(kind, new)
        self._check_finalizers(kind, live, new)
        if owners is None:
            owners = ownership.after_update(ownership.read(live), write.manager, live, new)
        if self.is_noop(live, new, owners):
            return live
        self._manage(kind, new, owners)
        return self._store(kind, live, new, write)

    def apply(self, kind: Kind, live: Object, wanted: Object, write: Write, *, force: bool) -> Object:
        part = {"status"} if write.subresource == "status" else set(wanted) - ({"status"} if kind.has_status else set())
        mine = {key: value for key, value in wanted.items() if key in part}
        base = copied(live)
        self.check_identity(kind, live, wanted)
        try:
            new, owners = ownership.applied(base, ownership.read(live), write.manager, mine, force=force)
        except ownership.FieldConflict as error:
            raise statuses.apply_conflict(error.owners) from error
        version = wanted["metadata"].get("resourceVersion") or live["metadata"]["resourceVersion"]
        new["metadata"] = {**new["metadata"], "resourceVersion": version}
        return self.replace(kind, live, new, write, owners)

    def delete(self, kind: Kind, live: Object, options: DeleteOptions, write: Write) -> Object | None:
        """Begin or finish the end of an object. None means that it is gone."""
        self.check_preconditions(kind, live, options.preconditions)
        new = copied(live)
        metadata = new["metadata"]
        policy = options.propagation_policy or ("Orphan" if kind.resource == JOB else "Background")
        _set_collectors_finalizer(metadata, policy)
        grace = _grace(kind, live, options)
        if not self.is_held(new) and grace == 0:
            self._remove(kind, live, write)
            return None
        began_before = "deletionTimestamp" in metadata
        if not began_before:
            metadata["deletionTimestamp"] = self.timestamp(grace)
            metadata["deletionGracePeriodSeconds"] = grace
        elif grace < metadata["deletionGracePeriodSeconds"]:
            metadata["deletionTimestamp"] = _sooner(metadata, grace)
            metadata["deletionGracePeriodSeconds"] = grace
        if not began_before and kind.has_generation:
            metadata["generation"] += 1
        if kind.resource == NAMESPACE:
            new["status"] = {"phase": "Terminating"}
        return live if new == live else self._store(kind, live, new, write)

    # The rules below are methods of their own, so that a test can break one at a time.

    def check_expectations(self, kind: Kind, live: Object, wanted: Object) -> None:
        """Optimistic locking: a write that names a UID or a version is meant for that one only."""
        name, expected, found = live["metadata"]["name"], wanted["metadata"], live["metadata"]
        if expected.get("uid", found["uid"]) != found["uid"]:
            why = f"Precondition failed: UID in precondition: {expected['uid']}, UID in object meta: {found['uid']}"
            raise statuses.conflict(kind.resource, name, why)
        if expected.get("resourceVersion") and expected["resourceVersion"] != found["resourceVersion"]:
            raise statuses.modified(kind.resource, name)

    def check_identity(self, kind: Kind, live: Object, wanted: Object) -> None:
        """A patch for another UID is not a conflict but an attempt to change it."""
        uid = wanted["metadata"].get("uid", live["metadata"]["uid"])
        if uid != live["metadata"]["uid"]:
            why = f'Invalid value: "{uid}": field is immutable'
            raise statuses.invalid(kind.resource, live["metadata"]["name"], "metadata.uid", why)

    def check_preconditions(self, kind: Kind, live: Object, wanted: Preconditions) -> None:
        metadata = live["metadata"]
        for field, expected, found in (
            ("UID", wanted.uid, metadata["uid"]),
            ("ResourceVersion", wanted.resource_version, metadata["resourceVersion"]),
        ):
            if expected not in {None, found}:
                raise statuses.precondition_failed(kind.resource, metadata["name"], field, expected, found)

    def check_unbound(self, kind: Kind, live: Object) -> None:
        """A pod gets a node once, and only if it may be scheduled."""
        name, spec = live["metadata"]["name"], live["spec"]
        if "deletionTimestamp" in live["metadata"]:
            raise statuses.conflict(
                kind.resource, name, f"pod {name} is being deleted, cannot be assigned to a host", "pods/binding"
            )
        if spec.get("nodeName"):
            why = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
            raise statuses.conflict(kind.resource, name, why, "pods/binding")
        if spec.get("schedulingGates"):
            raise statuses.conflict(
                kind.resource, name, f"pod {name} has non-empty .spec.schedulingGates", "pods/binding"
            )

    def blend(self, kind: Kind, live: Object, wanted: Object, subresource: str) -> Object:
        """A write of the status keeps the rest, a write of the rest keeps the status."""
        if subresource == "status":
            new = copied(_unmanaged({key: value for key, value in live.items() if key != "status"}))
            new.update({key: wanted[key] for key in ("status",) if key in wanted})
        else:
            kept = {"status"} if kind.has_status else set()
            new = copied(_unmanaged({key: value for key, value in wanted.items() if key not in kept}))
            new.update({key: live[key] for key in kept if key in live})
            server_set = {key: live["metadata"][key] for key in _SERVER_SET if key in live["metadata"]}
            mine = {key: value for key, value in new["metadata"].items() if key not in _SERVER_SET}
            new["metadata"] = {**mine, "name": live["metadata"]["name"], **server_set}
        new["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
        if kind.has_generation:
            new["metadata"]["generation"] = self.next_generation(live, new)
        return new

    def next_generation(self, live: Object, new: Object) -> int:
        aside = {"metadata", "status"}
        changed = _without(live, aside) != _without(new, aside)
        return int(live["metadata"]["generation"]) + changed

    def is_noop(self, live: Object, new: Object, owners: Owners) -> bool:
        """A write that changes nothing makes no version and no event."""
        return _bare(live) == _bare(new) and ownership.read(live) == owners

    def is_held(self, obj: Object) -> bool:
        """Whether somebody still has to do something before this object may go."""
        return bool(obj["metadata"].get("finalizers") or obj.get("spec", {}).get("finalizers"))

    def next_version(self) -> int:
        self.version += 1
        return self.version

    def commit(self, kind: Kind, before: Object | None, after: Object | None, by: str) -> Object:
        """The only place where the world changes. Returns the object as it is, or as it went."""
        version = str(self.next_version())
        base = after or before or {}
        obj = {**base, "metadata": {**base["metadata"], "resourceVersion": version}}
        key = (obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        if after is None:
            del self.objects[kind.resource][key]
        else:
            self.objects[kind.resource][key] = obj
        self.history.add(kind.resource, before, obj, gone=after is None, by=by)
        for resident in self.residents:
            resident.noticed(obj, gone=after is None)
        return obj

    def timestamp(self, seconds: float = 0) -> str:
        now = EPOCH + timedelta(seconds=asyncio.get_running_loop().time() + seconds)
        return now.strftime("%Y-%m-%dT%H:%M:%SZ")

    def _store(self, kind: Kind, live: Object | None, new: Object, write: Write) -> Object:
        metadata = new["metadata"]
        if "deletionTimestamp" in metadata and not self.is_held(new) and not metadata["deletionGracePeriodSeconds"]:
            self._remove(kind, live or new, write)
            return new
        if write.dry_run:
            return new
        stored = self.commit(kind, live, new, write.manager.name)
        if kind.resource == CRD and live is None:
            for defined in kinds.defined_by(stored):
                self.serve(defined)
        return stored

    def _remove(self, kind: Kind, live: Object, write: Write) -> None:
        if write.dry_run:
            return
        self.commit(kind, live, None, write.manager.name)
        if kind.resource == CRD:
            for defined in kinds.defined_by(live):
                self.stop_serving(defined.resource)

    def _initialise(self, kind: Kind, obj: Object, write: Write) -> None:
        metadata = obj["metadata"]
        for name in _SERVER_SET:
            metadata.pop(name, None)
        if not write.dry_run:
            self._uids += 1
        chance = 0 if write.dry_run else self._random.getrandbits(32)
        metadata["uid"] = f"{chance:08x}-0000-4000-8000-{self._uids:012x}"
        metadata["creationTimestamp"] = self.timestamp()
        if kind.has_generation:
            metadata["generation"] = 1
        if kind.has_status:
            obj.pop("status", None)
        obj.update(apiVersion=kind.resource.api_version, kind=kind.resource.kind)
        if kind.resource == POD:
            obj["status"] = {"phase": "Pending"}
        if kind.resource == NAMESPACE:
            obj.update(spec={"finalizers": ["kubernetes"]}, status={"phase": "Active"})
            metadata.setdefault("labels", {})["kubernetes.io/metadata.name"] = metadata["name"]
        if kind.resource == CRD:
            obj["status"] = {
                "conditions": [{"type": name, "status": "True"} for name in ("NamesAccepted", "Established")]
            }

    def _generated_name(self, kind: Kind, metadata: Object) -> str:
        if not metadata.get("generateName"):
            raise statuses.invalid(
                kind.resource, "", "metadata.name", "Required value: name or generateName is required"
            )
        return f"{metadata['generateName']}{''.join(self._random.choices(_SUFFIX_LETTERS, k=5))}"

    def _check_namespace(self, kind: Kind, metadata: Object) -> None:
        if not kind.resource.namespaced:
            return
        namespace = self.get(self.kinds[NAMESPACE], "", metadata["namespace"])
        if "deletionTimestamp" in namespace["metadata"]:
            raise statuses.namespace_terminating(kind.resource, metadata["name"], metadata["namespace"])

    def _check_finalizers(self, kind: Kind, live: Object, new: Object) -> None:
        old, wanted = live["metadata"].get("finalizers", []), new["metadata"].get("finalizers", [])
        added = [name for name in wanted if name not in old]
        if "deletionTimestamp" in live["metadata"] and added:
            why = f"Forbidden: no new finalizers can be added if the object is being deleted, found new {added}"
            raise statuses.invalid(kind.resource, live["metadata"]["name"], "metadata.finalizers", why)

    def _manage(self, kind: Kind, obj: Object, owners: Owners) -> None:
        obj["metadata"]["managedFields"] = ownership.written(owners, kind.resource.api_version, self.timestamp())


def copied(obj: Object) -> Object:
    """As it comes back from the wire: much faster than a copy part by part, of which a run needs hundreds."""
    copy: Object = msgspec.json.decode(msgspec.json.encode(obj))
    return copy


def _unmanaged(obj: Object) -> Object:
    """Who manages it is worked out anew at each write, and is most of an object."""
    return {**obj, "metadata": _without(obj["metadata"], {"managedFields"})}


def _tidy(kind: Kind, obj: Object) -> None:
    """Empty maps and lists are not stored where the server's own types leave them out."""
    places = [obj["metadata"]] if kind.custom else [obj["metadata"], obj]
    for place in places:
        for key in [key for key, value in place.items() if value is None or value in ({}, [])]:
            del place[key]
    if not kind.custom:
        _drop_nulls(obj)


def _drop_nulls(value: Any) -> None:
    if isinstance(value, dict):
        for key in [key for key, item in value.items() if item is None]:
            del value[key]
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _drop_nulls(item)


def _set_collectors_finalizer(metadata: Object, policy: str) -> None:
    finalizers = [name for name in metadata.get("finalizers", ()) if name not in _COLLECTORS_FINALIZERS.values()]
    if policy in _COLLECTORS_FINALIZERS:
        finalizers.append(_COLLECTORS_FINALIZERS[policy])
    metadata.pop("finalizers", None)
    if finalizers:
        metadata["finalizers"] = finalizers


def _grace(kind: Kind, live: Object, options: DeleteOptions) -> int:
    """Only a pod that some kubelet runs gets time to end."""
    if kind.resource != POD or not live.get("spec", {}).get("nodeName"):
        return 0
    if live.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
        return 0
    if options.grace_period_seconds is not None:
        return options.grace_period_seconds
    return int(live["spec"].get("terminationGracePeriodSeconds", _POD_GRACE))


def _sooner(metadata: Object, grace: int) -> str:
    """A shorter grace counts from when the end was first asked for."""
    saved = timedelta(seconds=metadata["deletionGracePeriodSeconds"] - grace)
    return (datetime.fromisoformat(metadata["deletionTimestamp"]) - saved).strftime("%Y-%m-%dT%H:%M:%SZ")


def _bare(obj: Object) -> Object:
    return {**obj, "metadata": _without(obj["metadata"], {"managedFields", "resourceVersion"})}


def _without(obj: Object, names: set[str]) -> dict[str, Any]:
    return {key: value for key, value in obj.items() if key not in names}
