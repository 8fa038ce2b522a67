"""Authentication of callers: by client certificate, or by a bearer token that the API server reviews."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from skysail.base.ttl_cache import Memory
from skysail.kube.client import token_review
from skysail.kube.client.client import Client
from skysail.node.server.errors import Unauthenticated

POLICY_RULES = token_review.POLICY_RULES

_AUTHENTICATED = "system:authenticated"
_POSITIVE_TTL = 120.0
_NEGATIVE_TTL = 30.0
_BEARER = "bearer "


class UserInfo(msgspec.Struct, frozen=True):
    """A Kubernetes user. Frozen, so that it can be part of a key."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""


class Authenticator:
    """Identifies callers. `clock` is monotonic. Tokens are cached by their hash only."""

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._memory: Memory[bytes, UserInfo | None] = Memory(clock)

    async def identify(self, request: web.Request) -> UserInfo:
        """Return the caller. Raises Unauthenticated without a valid certificate or token."""
        user_info = by_certificate(_certificate(request)) or await self._by_token(request)
        if user_info is None:
            raise Unauthenticated("Unauthorized")
        return user_info

    async def _by_token(self, request: web.Request) -> UserInfo | None:
        header = request.headers.get("Authorization", "")
        token = header[len(_BEARER) :].strip()
        if not header.lower().startswith(_BEARER) or not token:
            return None
        return await self._memory.get_or_fetch(
            hashlib.sha256(token.encode()).digest(),
            lambda: self._review(token),
            ttl=lambda caller: _POSITIVE_TTL if caller else _NEGATIVE_TTL,
        )

    async def _review(self, token: str) -> UserInfo | None:
        user = await token_review.review_token(self._client, token)
        return None if user is None else UserInfo(user.username, user.groups, user.uid)


def by_certificate(certificate: dict[str, Any] | None) -> UserInfo | None:
    """Return the caller of a verified certificate: common name and organizations, as at the API server."""
    fields = [field for part in (certificate or {}).get("subject", ()) for field in part]
    name = next((value for key, value in fields if key == "commonName"), "")
    if not name:
        return None
    groups = tuple(value for key, value in fields if key == "organizationName")
    return UserInfo(name, (*groups, _AUTHENTICATED))


def _certificate(request: web.Request) -> dict[str, Any] | None:
    tls = request.transport.get_extra_info("ssl_object") if request.transport else None
    return tls.getpeercert() if isinstance(tls, ssl.SSLObject) else None
