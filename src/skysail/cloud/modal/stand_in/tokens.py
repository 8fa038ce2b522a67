"""Credentials of clients: the account's token, and short-lived JWTs for V2 calls and for the task command router."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from skysail.cloud.modal.stand_in.errors import unauthenticated

_LIFETIME = 3600


class Credentials(msgspec.Struct, frozen=True):
    """A token of the account. Its secret never appears in a repr."""

    token_id: str
    token_secret: str

    def __repr__(self) -> str:
        return f"Credentials(token_id={self.token_id!r})"


class TokenIssuer:
    """Issues and verifies tokens. The key lives as long as the process, so its tokens do, too."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._key = secrets.token_bytes(32)

    def authenticate(self, metadata: Mapping[str, Any]) -> None:
        """Raise UNAUTHENTICATED unless the call has the token of the account."""
        given = (str(metadata.get("x-modal-token-id", "")), str(metadata.get("x-modal-token-secret", "")))
        wanted = (self._credentials.token_id, self._credentials.token_secret)
        if not all(hmac.compare_digest(one, other) for one, other in zip(given, wanted, strict=True)):
            raise unauthenticated("Token ID or token secret is not valid.")

    def jwt(self, subject: str) -> str:
        head, body = _encode({"alg": "HS256"}), _encode({"sub": subject, "exp": int(time.time()) + _LIFETIME})
        return f"{head}.{body}.{self._signature(f'{head}.{body}')}"

    def verify(self, jwt: str, subject: str) -> None:
        """Raise UNAUTHENTICATED unless this JWT was issued here for this subject and has not expired."""
        signed, _, signature = jwt.rpartition(".")
        if not hmac.compare_digest(signature, self._signature(signed)):
            raise unauthenticated("The JWT was not issued by this server.")
        claims = msgspec.json.decode(_decode(signed.partition(".")[2]))
        if claims["sub"] != subject or claims["exp"] < time.time():
            raise unauthenticated("The JWT is for something else, or has expired.")

    def _signature(self, text: str) -> str:
        return _text(hmac.digest(self._key, text.encode(), hashlib.sha256))


def _encode(values: dict[str, Any]) -> str:
    return _text(msgspec.json.encode(values))


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
