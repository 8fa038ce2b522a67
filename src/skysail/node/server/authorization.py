"""What a caller may: the API server decides, as for a kubelet.

Every route is a part of this node: `get nodes/stats` for statistics, `create nodes/proxy` for an exec by POST. Mind
that an exec over WebSocket is a GET, hence `get nodes/proxy` is the right to do everything in every pod of the node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from skysail.base.ttl_cache import Memory
from skysail.kube.api.rbac import Right
from skysail.kube.api.resources import Resource
from skysail.kube.client.client import Client
from skysail.node.server.authentication import Caller
from skysail.node.server.errors import Forbidden

ACCESS_REVIEW = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)
RIGHTS = (Right(ACCESS_REVIEW, ("create",)),)

# As long as the kubelet believes the same answers.
_ALLOWED_SECONDS = 300.0
_DENIED_SECONDS = 30.0

_VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_OWN = {"stats": ("stats",), "metrics": ("metrics",), "logs": ("log",), "checkpoint": ("checkpoint",)}
_FINER = {"pods": "pods", "runningpods": "pods", "healthz": "healthz", "configz": "configz"}
_PROXY = "proxy"


class Access(msgspec.Struct, frozen=True):
    """One thing that a caller wants to do with a part of the node."""

    verb: str
    subresource: str


class _Status(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


class Rights:
    """`clock` never goes back."""

    def __init__(self, client: Client, node: str, clock: Callable[[], float]) -> None:
        self._client = client
        self._node = node
        self._memory: Memory[tuple[Caller, Access], bool] = Memory(clock)

    async def check(self, caller: Caller, method: str, path: str) -> None:
        """Raises Forbidden unless one of the rights that open this path is the caller's."""
        ways = accesses(method, path)
        for access in ways:
            if await self._is_allowed(caller, access):
                return
        needed = " or ".join(f"{access.verb} nodes/{access.subresource}" for access in ways)
        raise Forbidden(f'user "{caller.name}" may not do this on node "{self._node}": it takes the right to {needed}')

    async def _is_allowed(self, caller: Caller, access: Access) -> bool:
        return await self._memory.get(
            (caller, access),
            lambda: self._review(caller, access),
            keep=lambda is_allowed: _ALLOWED_SECONDS if is_allowed else _DENIED_SECONDS,
        )

    async def _review(self, caller: Caller, access: Access) -> bool:
        manifest = review(caller, access, self._node)
        return (await self._client.create(ACCESS_REVIEW, manifest, _Review)).status.allowed


def accesses(method: str, path: str) -> tuple[Access, ...]:
    """The rights of which each opens this path, the finest first."""
    verb, first = _VERBS.get(method, method.lower()), path.lstrip("/").split("/")[0]
    subresources = _OWN.get(first) or ((_FINER[first], _PROXY) if first in _FINER else (_PROXY,))
    return tuple(Access(verb, subresource) for subresource in subresources)


def review(caller: Caller, access: Access, node: str) -> dict[str, Any]:
    return {
        "apiVersion": ACCESS_REVIEW.api_version,
        "kind": ACCESS_REVIEW.kind,
        "spec": {
            "user": caller.name,
            "groups": list(caller.groups),
            "uid": caller.uid,
            "resourceAttributes": {
                "verb": access.verb,
                "version": "v1",
                "resource": "nodes",
                "subresource": access.subresource,
                "name": node,
            },
        },
    }
