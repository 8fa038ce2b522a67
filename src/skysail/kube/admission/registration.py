"""Certificate of the admission server and its webhook configuration, both renewed without a restart.

One Secret holds the authority and the serving certificate, so that all replicas use the same. A new authority is
registered beside the old one first. Only then does the replica that registered it sign a serving certificate with it.
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
from skysail.kube.admission.server import NamespaceScope, WebhookAddress, configuration
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.rbac import PolicyRule
from skysail.kube.api.resources import CLUSTER_ROLE, MUTATING_WEBHOOK, SECRET
from skysail.kube.certificates import KeyPair
from skysail.kube.client.client import Client
from skysail.kube.client.errors import AlreadyExists, Conflict, KubeError, NotFound
from skysail.kube.client.kubeconfig import load_certificate

NAME = "skysail"
SECRET_NAME = "skysail-webhook"  # noqa: S105 (a name)
_AUTHORITY_LIFE = timedelta(days=3650)
_SERVER_LIFE = timedelta(days=365)
_CHECK_SECONDS = 60.0

POLICY_RULES = (
    PolicyRule(MUTATING_WEBHOOK, ("create",)),
    PolicyRule(MUTATING_WEBHOOK, ("get", "patch"), names=(NAME,)),
    # Read our ClusterRole: it owns the webhook configuration, so that removing the operator removes both.
    PolicyRule(CLUSTER_ROLE, ("get",), names=(NAME,)),
)
NAMESPACE_POLICY_RULES = (
    PolicyRule(SECRET, ("create",)),
    PolicyRule(SECRET, ("get", "update"), names=(SECRET_NAME,)),
)

log = logging.getLogger(__name__)


class Secret(Object, frozen=True, gc=False):
    data: dict[str, str] | None = None


class Keys(msgspec.Struct, frozen=True):
    """Content of the Secret: authority, serving certificate, and the previous authority."""

    authority: KeyPair
    server: KeyPair
    previous: bytes = b""

    @property
    def bundle(self) -> bytes:
        return self.authority.certificate + self.previous

    @property
    def is_signed_by_authority(self) -> bool:
        return self.server.is_signed_by(self.authority)

    def rotated(self, names: tuple[str, ...], now: datetime) -> Keys:
        """Return these keys, or new ones if they are due or the names have changed.

        A new authority does not sign yet: see `with_new_leaf`.
        """
        if self.authority.is_due(now):
            authority = certificates.certificate_authority(SECRET_NAME, now=now, valid=_AUTHORITY_LIFE)
            return Keys(authority, self.server, self.authority.certificate)
        if self.is_signed_by_authority and (self.server.is_due(now) or not self.server.covers(names)):
            return self.with_new_leaf(names, now)
        return self

    def with_new_leaf(self, names: tuple[str, ...], now: datetime) -> Keys:
        """Return these keys with a new serving certificate, signed by the current authority."""
        server = certificates.server(self.authority, names, now=now, valid=_SERVER_LIFE)
        return Keys(self.authority, server, self.previous)


def new_keys(names: tuple[str, ...], now: datetime) -> Keys:
    """Create a new authority and a serving certificate."""
    authority = certificates.certificate_authority(SECRET_NAME, now=now, valid=_AUTHORITY_LIFE)
    return Keys(authority, certificates.server(authority, names, now=now, valid=_SERVER_LIFE))


class WebhookRegistrar:
    """Keeps certificate and registration current. One per process; `tls` is updated while the server listens."""

    def __init__(
        self,
        client: Client,
        *,
        secret: Key,
        webhook_address: WebhookAddress,
        names: tuple[str, ...],
        now: Callable[[], datetime],
    ) -> None:
        self._client = client
        self._secret = secret
        self._webhook_address = webhook_address
        self._names = names
        self._now = now
        self._keys: Keys | None = None
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.minimum_version = ssl.TLSVersion.TLSv1_2

    async def load_certificate(self) -> None:
        """Load the keys from the Secret, and create or renew them if needed. Safe with several replicas at once."""
        self._serve(await self._current())

    @property
    def ca_bundle(self) -> bytes:
        """Return the CA bundle of this server. Empty before the first `load_certificate`."""
        return self._keys.bundle if self._keys else b""

    async def register(self, hooks: tuple[Hook, ...], namespace_scope: NamespaceScope) -> None:
        """Register the webhooks at the API server. Writes only if the registration differs."""
        assert self._keys is not None, "load_certificate() comes first"
        await self._configure(configuration(NAME, hooks, self._webhook_address, self._keys.bundle, namespace_scope))
        if not self._keys.is_signed_by_authority:
            secret = await self._client.get(SECRET, self._secret.namespace, self._secret.name, Secret)
            signed = self._keys.with_new_leaf(self._names, self._now())
            self._serve(await self._publish(signed, secret.metadata.resource_version))

    def _serve(self, keys: Keys) -> None:
        if self._keys is None or keys.server != self._keys.server:
            load_certificate(self.tls, keys.server.certificate, keys.server.key)
        self._keys = keys

    async def _configure(self, desired: dict[str, Any]) -> None:
        try:
            present = await self._client.get(MUTATING_WEBHOOK, "", NAME, _Configuration)
            if covers(present.webhooks, desired["webhooks"]):
                return
        except NotFound:
            log.debug("webhook configuration not found, creating")
        role = await self._client.get(CLUSTER_ROLE, "", NAME, Object)
        desired["metadata"]["ownerReferences"] = [
            {
                "apiVersion": CLUSTER_ROLE.api_version,
                "kind": CLUSTER_ROLE.kind,
                "name": NAME,
                "uid": role.metadata.uid,
            }
        ]
        await self._client.apply(MUTATING_WEBHOOK, desired, Object)
        log.info("webhook configuration applied", extra={"hooks": len(desired["webhooks"])})

    async def run(self, register: Callable[[], Awaitable[None]]) -> None:
        """Follow the Secret, renew in time, and restore a removed registration, until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            try:
                await self.load_certificate()
                await register()
            except KubeError as error:
                log.warning("webhook certificate check failed, retried", extra={"why": str(error)})

    async def _current(self) -> Keys:
        now = self._now()
        try:
            secret = await self._client.get(SECRET, self._secret.namespace, self._secret.name, Secret)
        except NotFound:
            # Restore a deleted Secret unchanged: the API server and other replicas still trust its authority.
            return await self._publish(self._keys or new_keys(self._names, now), "")
        keys = _read(secret)
        if keys is None:
            log.warning("webhook secret undecodable, keys replaced", extra={"secret": str(self._secret)})
            return await self._publish(new_keys(self._names, now), secret.metadata.resource_version)
        renewed = keys.rotated(self._names, now)
        return keys if renewed == keys else await self._publish(renewed, secret.metadata.resource_version)

    async def _publish(self, keys: Keys, resource_version: str) -> Keys:
        """Write new keys. If another replica was faster, return its keys."""
        manifest = _manifest(self._secret, keys, resource_version)
        write = self._client.replace if resource_version else self._client.create
        try:
            await write(SECRET, manifest, Object)
        except (AlreadyExists, Conflict):
            return await self._current()
        return keys


class _Configuration(Object, frozen=True, gc=False):
    webhooks: Any = None


def covers(present: Any, desired: Any) -> bool:
    """Return whether `present` contains everything in `desired`: the API server adds defaults, so they may differ."""
    if isinstance(desired, dict):
        return isinstance(present, dict) and all(covers(present.get(name), value) for name, value in desired.items())
    if isinstance(desired, list):
        return (
            isinstance(present, list)
            and len(present) == len(desired)
            and all(covers(left, right) for left, right in zip(present, desired, strict=True))
        )
    return bool(present == desired)


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
    keys = Keys(KeyPair(*values[0:2]), KeyPair(*values[2:4]), values[4])
    return keys if keys.authority.is_sound and keys.server.is_sound else None
