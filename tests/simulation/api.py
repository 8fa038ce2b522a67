"""The simulated API server: HTTP requests in, what `World` makes of them out.

It implements `kube.transport.Transport` and nothing beyond: faults are put around it, time is the event loop's.
The contract suite holds it to the behaviour of the real server.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from skysail.kube.api.resources import POD
from skysail.kube.client.transport import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, Reply, Request
from tests.simulation import patches, selectors, statuses
from tests.simulation.ownership import Manager
from tests.simulation.statuses import Refusal
from tests.simulation.watches import Refused, Watch
from tests.simulation.world import World, copied
from tests.simulation.writes import DeleteOptions, Preconditions, Write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from skysail.kube.api.resources import Resource
    from tests.simulation.kinds import Kind

Object = dict[str, Any]

# A request takes time each way, so that another task can come between a decision and its effect.
_ONE_WAY_SECONDS = 0.001
_PARTIAL = "as=PartialObjectMetadata"


class Target(msgspec.Struct, frozen=True):
    """What a path names."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


class ApiModel:
    """One client's connection to a world."""

    def __init__(self, world: World, user: str = "test") -> None:
        self.world = world
        self._user = user

    async def send(self, request: Request) -> Reply:
        await asyncio.sleep(_ONE_WAY_SECONDS)
        try:
            status, body = self._answer(request)
        except Refusal as refusal:
            status, body = refusal.code, refusal.status
        await asyncio.sleep(_ONE_WAY_SECONDS)
        return Reply(status=status, body=msgspec.json.encode(body), headers={"content-type": "application/json"})

    async def open(self, request: Request) -> Watch | Refused:
        await asyncio.sleep(_ONE_WAY_SECONDS)
        try:
            target = _whole(self._target(request.path))
            selector = selectors.parse(target.kind.resource, target.namespace, request.query)
            return Watch(self.world, target.kind.resource, selector, request.query)
        except Refusal as refusal:
            return Refused(refusal.code, msgspec.json.encode(refusal.status))

    async def close(self) -> None:
        """There is nothing to let go of."""

    def _answer(self, request: Request) -> tuple[int, Object]:
        if request.method == "GET" and (found := self._discover(request.path)):
            return 200, found
        target = self._target(request.path)
        if target.kind.resource == POD and target.subresource == "binding" and request.method == "POST":
            return 201, self._bind(target, request)
        if target.subresource not in {"", "status"} or (target.subresource and not target.kind.has_status):
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        match request.method, bool(target.name):
            case "GET", True:
                answer = 200, _as_wanted(request, self.world.get(target.kind, target.namespace, target.name))
            case "GET", False:
                answer = 200, self._list(target, request)
            case "POST", False:
                answer = 201, self._create(target, request)
            case "PUT", True:
                answer = 200, self._put(target, request)
            case "PATCH", True:
                answer = self._patch(target, request)
            case "DELETE", True:
                answer = 200, self._delete(target, request)
            case _:
                raise statuses.not_allowed()
        return answer

    def _create(self, target: Target, request: Request) -> Object:
        manifest = _body(request)
        metadata = manifest.setdefault("metadata", {})
        if target.kind.resource.namespaced and metadata.setdefault("namespace", target.namespace) != target.namespace:
            why = "the namespace of the provided object does not match the namespace sent on the request"
            raise statuses.bad_request(why)
        return self.world.create(target.kind, manifest, self._write(target, request))

    def _bind(self, target: Target, request: Request) -> Object:
        """Give a pod its node, for good."""
        binding = _body(request)
        live = self.world.get(target.kind, target.namespace, target.name)
        metadata = binding.get("metadata", {})
        wanted = Preconditions(uid=metadata.get("uid"), resource_version=metadata.get("resourceVersion"))
        self.world.check_preconditions(target.kind, live, wanted)
        self.world.check_unbound(target.kind, live)
        new = copied(live)
        new["spec"]["nodeName"] = binding["target"]["name"]
        new["metadata"].setdefault("annotations", {}).update(metadata.get("annotations", {}))
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self.world.timestamp()}
        others = [row for row in new["status"].get("conditions", ()) if row["type"] != "PodScheduled"]
        new["status"]["conditions"] = [*others, scheduled]
        self.world.commit(target.kind, live, new, self._user)
        return statuses.created()

    def _put(self, target: Target, request: Request) -> Object:
        wanted = _body(request)
        self._check_address(target, wanted)
        live = self.world.get(target.kind, target.namespace, target.name)
        if target.kind.needs_version_to_replace and not wanted["metadata"].get("resourceVersion"):
            why = "Invalid value: 0x0: must be specified for an update"
            raise statuses.invalid(target.kind.resource, target.name, "metadata.resourceVersion", why)
        return self.world.replace(target.kind, live, wanted, self._write(target, request))

    def _patch(self, target: Target, request: Request) -> tuple[int, Object]:
        content_type = request.headers.get("Content-Type", "")
        if content_type == APPLY_PATCH:
            return self._apply(target, request)
        live = self.world.get(target.kind, target.namespace, target.name)
        if content_type == MERGE_PATCH:
            wanted = patches.merge(live, _body(request))
        elif content_type == JSON_PATCH:
            wanted = patches.edit(copied(live), msgspec.json.decode(request.body or b"[]"))
        else:
            raise Refusal(
                415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {content_type}"
            )
        self._check_address(target, wanted)
        self.world.check_identity(target.kind, live, wanted)
        return 200, self.world.replace(target.kind, live, wanted, self._write(target, request))

    def _apply(self, target: Target, request: Request) -> tuple[int, Object]:
        wanted = _body(request)
        if not request.query.get("fieldManager"):
            raise Refusal(422, "Invalid", "fieldManager: Required value: is required for apply patch")
        if "managedFields" in wanted.get("metadata", {}):
            raise statuses.bad_request("metadata.managedFields must be nil")
        self._check_address(target, wanted)
        write = self._write(target, request, operation="Apply")
        place = (target.namespace, target.name)
        live = self.world.objects[target.kind.resource].get(place)
        if live is None:
            return 201, self._apply_to_nothing(target, wanted, write)
        force = request.query.get("force") == "true"
        return 200, self.world.apply(target.kind, live, wanted, write, force=force)

    def _apply_to_nothing(self, target: Target, wanted: Object, write: Write) -> Object:
        if write.subresource:
            raise statuses.not_found(target.kind.resource, target.name)
        if uid := wanted["metadata"].get("uid"):
            why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            raise statuses.conflict(target.kind.resource, target.name, why)
        if target.namespace:
            wanted["metadata"]["namespace"] = target.namespace
        return self.world.create(target.kind, wanted, write)

    def _delete(self, target: Target, request: Request) -> Object:
        options = msgspec.json.decode(request.body or b"{}", type=DeleteOptions)
        if not request.body:
            options = msgspec.convert(_options_in(request.query), DeleteOptions, strict=False)
        live = self.world.get(target.kind, target.namespace, target.name)
        write = Write(self._write(target, request).manager, dry_run="All" in options.dry_run)
        left = self.world.delete(target.kind, live, options, write)
        return left or statuses.success(target.kind.resource, target.name, live["metadata"]["uid"])

    def _list(self, target: Target, request: Request) -> Object:
        resource = target.kind.resource
        selector = selectors.parse(resource, target.namespace, request.query)
        page = self.world.pages.page(resource, selector, request.query)
        items = [_as_wanted(request, item) for item in page.items]
        if not target.kind.custom and _PARTIAL not in request.headers.get("Accept", ""):
            items = [{key: value for key, value in item.items() if key not in {"apiVersion", "kind"}} for item in items]
        metadata: Object = {"resourceVersion": str(page.version)}
        if page.token:
            metadata["continue"] = page.token
        kind = {"apiVersion": resource.api_version, "kind": f"{resource.kind}List"}
        if _PARTIAL in request.headers.get("Accept", ""):
            kind = {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList"}
        return {**kind, "metadata": metadata, "items": items}

    def _discover(self, path: str) -> Object | None:
        """Which kinds a group and version serves. None: the path is none of discovery's."""
        parts = path.strip("/").split("/")
        if parts == ["apis"]:
            return _groups([kind.resource for kind in self.world.kinds.values()])
        if not (parts == ["api", "v1"] or (parts[0] == "apis" and len(parts) == 3)):
            return None
        group_version = "/".join(parts[1:])
        served = [kind for kind in self.world.kinds.values() if kind.resource.api_version == group_version]
        if not served:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": group_version,
            "resources": [row for kind in served for row in _discovered(kind)],
        }

    def _target(self, path: str) -> Target:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        group, version, rest = ("", parts[1], parts[2:]) if parts[0] == "api" else (parts[1], parts[2], parts[3:])
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in {"status", "finalize"}:
            namespace, rest = rest[1], rest[2:]
        for kind in self.world.kinds.values():
            resource = kind.resource
            if (resource.group, resource.version, resource.plural) == (group, version, rest[0]):
                name, subresource = [*rest[1:], "", ""][:2]
                return Target(kind, namespace, name, subresource)
        raise Refusal(404, "NotFound", "the server could not find the requested resource")

    def _check_address(self, target: Target, wanted: Object) -> None:
        metadata = wanted.setdefault("metadata", {})
        name = metadata.setdefault("name", target.name)
        if name != target.name:
            raise statuses.bad_request(
                f"the name of the object ({name}) does not match the name on the URL ({target.name})"
            )
        if target.namespace and metadata.setdefault("namespace", target.namespace) != target.namespace:
            raise statuses.bad_request("the namespace of the object does not match the namespace on the URL")

    def _write(self, target: Target, request: Request, operation: str = "Update") -> Write:
        name = request.query.get("fieldManager") or self._user
        return Write(Manager(name, operation, target.subresource), request.query.get("dryRun") == "All")


def _whole(target: Target) -> Target:
    """A log, which nobody writes here, could be followed as well."""
    if target.subresource:
        raise Refusal(404, "NotFound", "the server could not find the requested resource")
    return target


def _body(request: Request) -> Object:
    body: Object = msgspec.json.decode(request.body or b"{}")
    return body


def _options_in(query: Mapping[str, str]) -> Object:
    return {**query, "dryRun": [query["dryRun"]]} if "dryRun" in query else {**query}


def _as_wanted(request: Request, obj: Object) -> Object:
    if _PARTIAL not in request.headers.get("Accept", ""):
        return obj
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def _discovered(kind: Kind) -> list[Object]:
    resource = kind.resource
    row = {"name": resource.plural, "namespaced": resource.namespaced, "kind": resource.kind}
    return [row, {**row, "name": f"{resource.plural}/status"}] if kind.has_status else [row]


def _groups(served: list[Resource]) -> Object:
    groups: dict[str, set[str]] = {}
    for resource in served:
        if resource.group:
            groups.setdefault(resource.group, set()).add(resource.version)
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [
            {
                "name": group,
                "versions": [
                    {"groupVersion": f"{group}/{version}", "version": version} for version in sorted(versions)
                ],
            }
            for group, versions in groups.items()
        ],
    }
