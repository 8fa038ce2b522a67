"""The admission server's certificate and its entry at the API server, kept current without a restart.

The authority and the serving certificate are in one Secret, so that all replicas present the same. A new authority is
announced beside the old one first; only then, by the replica that announced it, is a certificate signed by it.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec

from skysail.kube import certificates
from skysail.kube.admission.hooks import Hook
from skysail.kube.admission.server import Address, Scope, configuration
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.rbac import Right
from skysail.kube.api.resources import CLUSTER_ROLE, MUTATING_WEBHOOK, SECRET
from skysail.kube.certificates import Pair
from skysail.kube.client.client import Client
from skysail.kube.client.errors import AlreadyExists, Conflict, KubeError, NotFound
from skysail.kube.client.kubeconfig import load_certificate

NAME = "skysail"
SECRET_NAME = "skysail-webhook"  # noqa: S105 (a name)
_AUTHORITY_LIFE = timedelta(days=3650)
_SERVER_LIFE = timedelta(days=365)
_CHECK_SECONDS = 60.0

RIGHTS = (
    Right(MUTATING_WEBHOOK, ("create",)),
    Right(MUTATING_WEBHOOK, ("get", "patch"), names=(NAME,)),
    # The configuration is owned by our ClusterRole, so that removing the operator removes it too.
    Right(CLUSTER_ROLE, ("get",), names=(NAME,)),
)
OWN_NAMESPACE_RIGHTS = (
    Right(SECRET, ("create",)),
    Right(SECRET, ("get", "update"), names=(SECRET_NAME,)),
)

log = logging.getLogger(__name__)


class Secret(Object, frozen=True, gc=False):
    data: dict[str, str] | None = None


class Keys(msgspec.Struct, frozen=True):
    """What the Secret holds: who signs, what is served, and who signed before."""

    authority: Pair
    server: Pair
    previous: bytes = b""

    @property
    def bundle(self) -> bytes:
        return self.authority.certificate + self.previous

    @property
    def is_signed_by_authority(self) -> bool:
        return self.server.is_signed_by(self.authority)

    def renewed(self, names: tuple[str, ...], now: datetime) -> Keys:
        """These keys, or new ones where their time or their names have changed.

        A new authority signs nothing yet: see `signed`.
        """
        if self.authority.is_due(now):
            authority = certificates.authority(SECRET_NAME, now=now, valid=_AUTHORITY_LIFE)
            return Keys(authority, self.server, self.authority.certificate)
        if self.is_signed_by_authority and (self.server.is_due(now) or not self.server.covers(names)):
            return self.signed(names, now)
        return self

    def signed(self, names: tuple[str, ...], now: datetime) -> Keys:
        """With a new serving certificate, signed by the present authority."""
        server = certificates.server(self.authority, names, now=now, valid=_SERVER_LIFE)
        return Keys(self.authority, server, self.previous)


def made(names: tuple[str, ...], now: datetime) -> Keys:
    """New keys, that nobody has seen."""
    authority = certificates.authority(SECRET_NAME, now=now, valid=_AUTHORITY_LIFE)
    return Keys(authority, certificates.server(authority, names, now=now, valid=_SERVER_LIFE))


class Keeper:
    """One per process. `tls` is what the admission server listens with; it changes under the server's hands."""

    def __init__(
        self, client: Client, *, secret: Key, address: Address, names: tuple[str, ...], now: Callable[[], datetime]
    ) -> None:
        self._client = client
        self._secret = secret
        self._address = address
        self._names = names
        self._now = now
        self._keys: Keys | None = None
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.minimum_version = ssl.TLSVersion.TLSv1_2

    async def load(self) -> None:
        """Serve with what the Secret holds; make or renew it where needed. Safe with several replicas at once."""
        self._serve(await self._current())

    @property
    def authority(self) -> bytes:
        """Who vouches for this server. Empty before the first `load`."""
        return self._keys.bundle if self._keys else b""

    async def announce(self, hooks: tuple[Hook, ...], scope: Scope) -> None:
        """Make the API server ask us. Writes only where its entry differs from what it should be."""
        assert self._keys is not None, "load() comes first"
        await self._configure(configuration(NAME, hooks, self._address, self._keys.bundle, scope))
        if not self._keys.is_signed_by_authority:
            secret = await self._client.get(SECRET, self._secret.namespace, self._secret.name, Secret)
            signed = self._keys.signed(self._names, self._now())
            self._serve(await self._publish(signed, secret.metadata.resource_version))

    def _serve(self, keys: Keys) -> None:
        if self._keys is None or keys.server != self._keys.server:
            load_certificate(self.tls, keys.server.certificate, keys.server.key)
        self._keys = keys

    async def _configure(self, wanted: dict[str, Any]) -> None:
        try:
            present = await self._client.get(MUTATING_WEBHOOK, "", NAME, _Configuration)
            if covers(present.webhooks, wanted["webhooks"]):
                return
        except NotFound:
            log.debug("webhooks not announced yet")
        role = await self._client.get(CLUSTER_ROLE, "", NAME, Object)
        wanted["metadata"]["ownerReferences"] = [
            {
                "apiVersion": CLUSTER_ROLE.api_version,
                "kind": CLUSTER_ROLE.kind,
                "name": NAME,
                "uid": role.metadata.uid,
            }
        ]
        await self._client.apply(MUTATING_WEBHOOK, wanted, Object)
        log.info("webhooks announced", extra={"hooks": len(wanted["webhooks"])})

    async def run(self, announce: Callable[[], Awaitable[None]]) -> None:
        """Until cancelled: follow the Secret, renew in time, and announce again what somebody removed."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            try:
                await self.load()
                await announce()
            except KubeError as error:
                log.warning("webhook certificates not checked", extra={"why": str(error)})

    async def _current(self) -> Keys:
        now = self._now()
        try:
            secret = await self._client.get(SECRET, self._secret.namespace, self._secret.name, Secret)
        except NotFound:
            # A Secret that was deleted comes back as it was: the API server and other replicas still trust it.
            return await self._publish(self._keys or made(self._names, now), "")
        keys = _read(secret)
        if keys is None:
            log.warning("webhook Secret cannot be read, its keys are made anew", extra={"secret": str(self._secret)})
            return await self._publish(made(self._names, now), secret.metadata.resource_version)
        renewed = keys.renewed(self._names, now)
        return keys if renewed == keys else await self._publish(renewed, secret.metadata.resource_version)

    async def _publish(self, keys: Keys, resource_version: str) -> Keys:
        """Write new keys; where another replica was faster, its keys are the right ones."""
        manifest = _manifest(self._secret, keys, resource_version)
        write = self._client.replace if resource_version else self._client.create
        try:
            await write(SECRET, manifest, Object)
        except (AlreadyExists, Conflict):
            return await self._current()
        return keys


class _Configuration(Object, frozen=True, gc=False):
    webhooks: Any = None


def covers(present: Any, wanted: Any) -> bool:
    """Whether `present` says all that `wanted` says; the server adds defaults to what it stores."""
    if isinstance(wanted, dict):
        return isinstance(present, dict) and all(covers(present.get(name), value) for name, value in wanted.items())
    if isinstance(wanted, list):
        return (
            isinstance(present, list)
            and len(present) == len(wanted)
            and all(covers(have, want) for have, want in zip(present, wanted, strict=True))
        )
    return bool(present == wanted)


_FIELDS = ("ca.crt", "ca.key", "tls.crt", "tls.key", "previous-ca.crt")


def _manifest(key: Key, keys: Keys, resource_version: str) -> dict[str, Any]:
    values = (*msgspec.structs.astuple(keys.authority), *msgspec.structs.astuple(keys.server), keys.previous)
    metadata = {"name": key.name, "namespace": key.namespace}
    if resource_version:
        metadata["resourceVersion"] = resource_version
    return {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": metadata,
        "data": {
            field: base64.b64encode(value).decode() for field, value in zip(_FIELDS, values, strict=True) if value
        },
    }


def _read(secret: Secret) -> Keys | None:
    try:
        values = [base64.b64decode((secret.data or {}).get(field, ""), validate=True) for field in _FIELDS]
    except ValueError:
        return None
    keys = Keys(Pair(*values[0:2]), Pair(*values[2:4]), values[4])
    return keys if keys.authority.is_sound and keys.server.is_sound else None
