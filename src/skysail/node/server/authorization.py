"""Authorization of callers by the API server, as for a kubelet.

Every route is a subresource of this node: `get nodes/stats` for statistics, `create nodes/proxy` for an exec by POST.
An exec over WebSocket is a GET, so `get nodes/proxy` permits any action in every pod of the node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from skysail.base.ttl_cache import Memory
from skysail.kube.api.rbac import PolicyRule
from skysail.kube.api.resources import Resource
from skysail.kube.client.client import Client
from skysail.node.server.authentication import UserInfo
from skysail.node.server.errors import Forbidden

ACCESS_REVIEW = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)
POLICY_RULES = (PolicyRule(ACCESS_REVIEW, ("create",)),)

# The kubelet's cache times.
_ALLOWED_SECONDS = 300.0
_DENIED_SECONDS = 30.0

_VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_OWN = {"stats": ("stats",), "metrics": ("metrics",), "logs": ("log",), "checkpoint": ("checkpoint",)}
_FINER = {"pods": "pods", "runningpods": "pods", "healthz": "healthz", "configz": "configz"}
_PROXY = "proxy"


class ResourceAttributes(msgspec.Struct, frozen=True):
    """Verb and node subresource of a request."""

    verb: str
    subresource: str


class _Status(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


class Authorizer:
    """Checks callers by access reviews. `clock` is monotonic."""

    def __init__(self, client: Client, node: str, clock: Callable[[], float]) -> None:
        self._client = client
        self._node = node
        self._memory: Memory[tuple[UserInfo, ResourceAttributes], bool] = Memory(clock)

    async def check(self, user_info: UserInfo, method: str, path: str) -> None:
        """Raise Forbidden unless the caller has one of the permissions for this path."""
        alternatives = required_access(method, path)
        for resource_attributes in alternatives:
            if await self._is_allowed(user_info, resource_attributes):
                return
        needed = " or ".join(
            f"{resource_attributes.verb} nodes/{resource_attributes.subresource}"
            for resource_attributes in alternatives
        )
        raise Forbidden(
            f'user "{user_info.name}" may not do this on node "{self._node}": grant the permission to {needed}'
        )

    async def _is_allowed(self, user_info: UserInfo, resource_attributes: ResourceAttributes) -> bool:
        return await self._memory.get_or_fetch(
            (user_info, resource_attributes),
            lambda: self._review(user_info, resource_attributes),
            ttl=lambda is_allowed: _ALLOWED_SECONDS if is_allowed else _DENIED_SECONDS,
        )

    async def _review(self, user_info: UserInfo, resource_attributes: ResourceAttributes) -> bool:
        manifest = review(user_info, resource_attributes, self._node)
        return (await self._client.create(ACCESS_REVIEW, manifest, _Review)).status.allowed


def required_access(method: str, path: str) -> tuple[ResourceAttributes, ...]:
    """Return the permissions of which each one is sufficient for this path, the most specific first."""
    verb, first = _VERBS.get(method, method.lower()), path.lstrip("/").split("/")[0]
    subresources = _OWN.get(first) or ((_FINER[first], _PROXY) if first in _FINER else (_PROXY,))
    return tuple(ResourceAttributes(verb, subresource) for subresource in subresources)


def review(user_info: UserInfo, resource_attributes: ResourceAttributes, node: str) -> dict[str, Any]:
    return {
        "apiVersion": ACCESS_REVIEW.api_version,
        "kind": ACCESS_REVIEW.kind,
        "spec": {
            "user": user_info.name,
            "groups": list(user_info.groups),
            "uid": user_info.uid,
            "resourceAttributes": {
                "verb": resource_attributes.verb,
                "version": "v1",
                "resource": "nodes",
                "subresource": resource_attributes.subresource,
                "name": node,
            },
        },
    }
