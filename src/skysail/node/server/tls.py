"""TLS of the node's servers: their certificate and their client CAs. Both are reloaded without a restart.

OpenSSL can add an authority to a context, but cannot remove one. So each change creates a new context. A permanent
front context begins every handshake and switches to the newest context; existing connections continue.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable, Mapping

import msgspec

from skysail.kube.api.objects import Object
from skysail.kube.api.resources import CONFIG_MAP
from skysail.kube.cache.cache import Cache
from skysail.kube.cache.reflector import Reflector
from skysail.kube.certificates import KeyPair
from skysail.kube.client.client import Client
from skysail.kube.client.kubeconfig import load_certificate

# The ConfigMap in which every API server publishes its client CAs.
_NAMESPACE, _NAME = "kube-system", "extension-apiserver-authentication"
READER = (_NAMESPACE, f"{_NAME}-reader")
_CALLERS, _FRONT_PROXY = "client-ca-file", "requestheader-client-ca-file"
_POLL_SECONDS = 600.0
_RETRY_SECONDS = 1.0

log = logging.getLogger(__name__)


class _Authentication(Object, frozen=True, gc=False):
    data: Mapping[str, str] = msgspec.field(default_factory=dict)


class ReloadingContext:
    """A permanent front context, which delegates to replaceable ones. Before the first `use`, handshakes fail."""

    def __init__(self, verify: ssl.VerifyMode) -> None:
        self._verify = verify
        self._used: tuple[KeyPair, str] | None = None
        self._newest: ssl.SSLContext | None = None
        self.context = _bare(verify)
        self.context.sni_callback = self._hand_over

    def use(self, own: KeyPair, authority: str) -> None:
        """Use this certificate and authority for new connections.

        Raises ssl.SSLError if one of them is invalid; the old ones stay in use then.
        """
        if (own, authority) == self._used:
            return
        self._newest = context(own, authority, self._verify)
        self._used = (own, authority)

    def _hand_over(self, connection: ssl.SSLObject, _name: str | None, _front: ssl.SSLContext) -> int | None:
        """Switch to the newest context. OpenSSL calls this in every handshake, even without a server name."""
        if self._newest is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._newest
        return None


class ServingCertificate:
    """TLS contexts of both servers of a node. `read` returns the current key pair; it is called at intervals.

    `callers` requests a client certificate but does not require one, because a caller may have a token instead.
    `front_proxy` admits only the API server's proxy.
    """

    def __init__(self, client: Client, read: Callable[[], KeyPair], rng: random.Random) -> None:
        self._client = client
        self._read = read
        self._rng = rng
        self._changed = asyncio.Event()
        self._maps: Cache[_Authentication] = Cache(
            CONFIG_MAP, _Authentication, selector={"fieldSelector": f"metadata.name={_NAME}"}
        )
        self._maps.feeds = (_NAMESPACE,)
        self._maps.subscribe(lambda _old, _new: self._changed.set())
        self.callers = ReloadingContext(ssl.CERT_OPTIONAL)
        self.front_proxy = ReloadingContext(ssl.CERT_REQUIRED)
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Keep the contexts current until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            reflector = Reflector(self._client, self._maps, namespace=_NAMESPACE, rng=self._rng)
            tasks.create_task(reflector.run())
            await self._maps.synced.wait()
            while True:
                self._changed.clear()
                is_renewed = self._renew()
                try:
                    async with asyncio.timeout(_POLL_SECONDS if is_renewed else _RETRY_SECONDS):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    def _renew(self) -> bool:
        authentication = next(iter(self._maps.all()), None)
        data = authentication.data if authentication else {}
        try:
            own = self._read()
            self.callers.use(own, data.get(_CALLERS, ""))
            self.front_proxy.use(own, data.get(_FRONT_PROXY, ""))
        except (OSError, ValueError) as error:
            log.warning("serving certificate not reloaded, retried", extra={"why": str(error)})
            return False
        self.ready.set()
        return True


def context(own: KeyPair, authority: str, verify: ssl.VerifyMode) -> ssl.SSLContext:
    """Return a server context. An invalid client certificate fails the handshake; without an authority, all are."""
    created = _bare(verify)
    load_certificate(created, own.certificate, own.key)
    if authority:
        created.load_verify_locations(cadata=authority)
    return created


def _bare(verify: ssl.VerifyMode) -> ssl.SSLContext:
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Forbid session resumption: it would admit a caller whose authority is no longer trusted. Before TLS 1.3 the
    # server's cache resumes sessions even without tickets, and that cache belongs to the permanent front context.
    bare.minimum_version = ssl.TLSVersion.TLSv1_3
    bare.num_tickets = 0
    bare.set_alpn_protocols(["http/1.1"])
    bare.verify_mode = verify
    return bare
