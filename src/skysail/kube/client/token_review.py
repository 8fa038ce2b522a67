"""Authentication of bearer tokens by the API server (TokenReview)."""

from __future__ import annotations

import msgspec

from skysail.kube.api.rbac import PolicyRule
from skysail.kube.api.resources import Resource
from skysail.kube.client.client import Client

TOKEN_REVIEW = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
POLICY_RULES = (PolicyRule(TOKEN_REVIEW, ("create",)),)


class User(msgspec.Struct, frozen=True):
    """Authenticated user. For a service account token, `extra` names the pod that the token was issued for."""

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


async def review_token(client: Client, token: str, audience: str = "") -> User | None:
    """Return the user of a token, or None if the token is invalid or has another audience.

    The default audience is the API server.
    """
    spec = {"token": token, **({"audiences": [audience]} if audience else {})}
    manifest = {"apiVersion": TOKEN_REVIEW.api_version, "kind": TOKEN_REVIEW.kind, "spec": spec}
    status = (await client.create(TOKEN_REVIEW, manifest, _Review)).status
    if not status.authenticated or not status.user.username:
        return None
    # Require the audience in the reply: a server without audience support would accept any token.
    return status.user if not audience or audience in status.audiences else None
