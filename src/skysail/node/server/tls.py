"""The TLS of the node's servers: their own certificate, and whose certificates they believe. Both change in use.

OpenSSL can add an authority to a context, but never take one away. So each change makes a new context, and every
handshake begins at a front that hands over to the newest one; connections that are there go on.
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

# Where every API server tells other servers whom it believes.
_NAMESPACE, _NAME = "kube-system", "extension-apiserver-authentication"
READER = (_NAMESPACE, f"{_NAME}-reader")
_CALLERS, _FRONT_PROXY = "client-ca-file", "requestheader-client-ca-file"
_POLL_SECONDS = 600.0
_RETRY_SECONDS = 1.0

log = logging.getLogger(__name__)


class _Authentication(Object, frozen=True, gc=False):
    data: Mapping[str, str] = msgspec.field(default_factory=dict)


class ReloadingContext:
    """A context for a server that lasts, in front of ones that are replaced. Nobody gets in before the first."""

    def __init__(self, verify: ssl.VerifyMode) -> None:
        self._verify = verify
        self._used: tuple[KeyPair, str] | None = None
        self._newest: ssl.SSLContext | None = None
        self.context = _bare(verify)
        self.context.sni_callback = self._hand_over

    def use(self, own: KeyPair, authority: str) -> None:
        """From now on. Raises ssl.SSLError where one of them cannot be read; then all stays as it was."""
        if (own, authority) == self._used:
            return
        self._newest = context(own, authority, self._verify)
        self._used = (own, authority)

    def _hand_over(self, connection: ssl.SSLObject, _name: str | None, _front: ssl.SSLContext) -> int | None:
        """Called in every handshake, also where the caller names no server."""
        if self._newest is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._newest
        return None


class ServingCertificate:
    """Both servers of a node. `read` gives the pair that should be in use now; it is asked from time to time.

    `callers` asks for a certificate and does not require one: who has none may have a token. `front_proxy` lets nobody
    in but the API server's own proxy.
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
        """Until cancelled."""
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
            log.warning("certificates not renewed", extra={"why": str(error)})
            return False
        self.ready.set()
        return True


def context(own: KeyPair, authority: str, verify: ssl.VerifyMode) -> ssl.SSLContext:
    """A false certificate ends the handshake. Without an authority every certificate is false."""
    made = _bare(verify)
    load_certificate(made, own.certificate, own.key)
    if authority:
        made.load_verify_locations(cadata=authority)
    return made


def _bare(verify: ssl.VerifyMode) -> ssl.SSLContext:
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A resumed session would bring back a caller whose authority is no longer believed. Before 1.3 the server's own
    # cache resumes them, also without tickets, and it is the front's, which outlives every authority.
    bare.minimum_version = ssl.TLSVersion.TLSv1_3
    bare.num_tickets = 0
    bare.set_alpn_protocols(["http/1.1"])
    bare.verify_mode = verify
    return bare
