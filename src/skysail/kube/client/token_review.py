"""Whose a bearer token is, by the API server's own word."""

from __future__ import annotations

import msgspec

from skysail.kube.api.rbac import Right
from skysail.kube.api.resources import Resource
from skysail.kube.client.client import Client

TOKEN_REVIEW = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
RIGHTS = (Right(TOKEN_REVIEW, ("create",)),)


class User(msgspec.Struct, frozen=True):
    """`extra` tells of a service account's token which pod it was made for."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}


class _Status(msgspec.Struct):
    authenticated: bool = False
    user: User = User()
    audiences: tuple[str, ...] = ()


class _Review(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


async def review(client: Client, token: str, audience: str = "") -> User | None:
    """None for a token that nobody has, or that is meant for somebody else. Without an audience: for the API server."""
    spec = {"token": token, **({"audiences": [audience]} if audience else {})}
    manifest = {"apiVersion": TOKEN_REVIEW.api_version, "kind": TOKEN_REVIEW.kind, "spec": spec}
    status = (await client.create(TOKEN_REVIEW, manifest, _Review)).status
    if not status.authenticated or not status.user.username:
        return None
    # A server that knows nothing of audiences does not name them, and would take a token for anybody.
    return status.user if not audience or audience in status.audiences else None
