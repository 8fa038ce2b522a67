"""Client of OCI registries (distribution API v2): reads manifests and small blobs of one repository.

Credentials go to the registry and to its token server, never to a mirror or the target of a redirect. Every host is
checked by the egress policy. Sizes and times are bounded.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import urllib.request
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from urllib.parse import urlencode, urljoin

import msgspec
from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from yarl import URL

from skysail.base import untrusted_json
from skysail.base.names import Reason
from skysail.cloud.account import RegistryCredentials
from skysail.cloud.errors import OutcomeUnknown, Rejected, Throttled
from skysail.cloud.image_names import ImageName
from skysail.cloud.registry_addresses import AddressDenied, PolicyResolver, RegistryAddresses, look_up
from skysail.cloud.registry_mirrors import RegistryMirrors

MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json,application/vnd.oci.image.index.v1+json,"
    "application/vnd.docker.distribution.manifest.v2+json,application/vnd.docker.distribution.manifest.list.v2+json"
)
_MAX_BYTES = 4 * 2**20
_MAX_TOKEN_BYTES = 2**18
# A piece may unpack to a thousand times its size, and meanwhile no other task runs.
_PIECE_BYTES = 2**12
_MAX_REDIRECTS = 5
_TIMEOUT = ClientTimeout(total=20, sock_connect=10, sock_read=10)
_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "skysail"}
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_OK, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _TOO_MANY = 200, 401, 403, 404, 429
_DEFAULT_RETRY_AFTER = 60.0
_MAX_RETRY_AFTER = 3600.0
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


class _Token(msgspec.Struct, frozen=True):
    token: str = ""
    access_token: str = ""


class _Source(msgspec.Struct, frozen=True):
    """A registry or a mirror from which a repository is read. `title` names it in messages."""

    origin: str
    path: str
    title: str


class RegistryClient:
    """Client for all registries. Connects when it is first used; must be closed."""

    def __init__(self, registry_addresses: RegistryAddresses, registry_mirrors: RegistryMirrors) -> None:
        self._addresses = registry_addresses
        self._mirrors = registry_mirrors
        self._sessions: dict[bool, ClientSession] = {}

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    def _session(self, *, is_proxied: bool) -> ClientSession:
        if is_proxied not in self._sessions:
            # Behind a proxy, only the proxy's own name is resolved here, and the administrator chose the proxy.
            resolver = None if is_proxied else PolicyResolver(self._addresses)
            # A new resolution for each connection: an earlier answer must not outlive its check.
            connector = TCPConnector(resolver=resolver, use_dns_cache=False)
            self._sessions[is_proxied] = ClientSession(
                connector=connector,
                headers=_HEADERS,
                timeout=_TIMEOUT,
                auto_decompress=False,
                cookie_jar=DummyCookieJar(),
            )
        return self._sessions[is_proxied]

    def repository(self, name: ImageName, credentials: RegistryCredentials | None) -> Repository:
        """Return the repository of an image, at the mirror of its registry if there is one.

        The credentials must be those of its registry. With credentials, the registry itself is read: a mirror does not
        know them, and must not learn them.
        """
        mirror = self._mirrors.find(name.registry) if credentials is None else None
        if mirror is not None:
            return Repository(self, name, None, _Source(mirror.origin, mirror.prefix + name.repository, mirror.title))
        origin = f"{self._addresses.scheme(name.api_host)}://{name.api_host}"
        return Repository(self, name, credentials, _Source(origin, name.repository, f"registry {name.registry}"))

    async def _check(self, url: URL) -> str | None:
        """Check the host of a URL. Returns the proxy for it, or None. Raises AddressDenied.

        aiohttp resolves no numeric address, and a proxy resolves names itself: both are checked here.
        """
        host = url.host or ""
        proxy = None if urllib.request.proxy_bypass(host) else urllib.request.getproxies().get(url.scheme)
        if _is_numeric(host):
            self._addresses.check(host, url.port, [host])
        elif proxy is not None:
            try:
                addresses = await look_up(host, url.port or 0)
            except OSError:
                return proxy  # the proxy may know names that are unknown here
            self._addresses.check(host, url.port, addresses)
        return proxy

    @asynccontextmanager
    async def get(self, url: URL, headers: Mapping[str, str]) -> AsyncIterator[ClientResponse]:
        proxy = await self._check(url)
        session = self._session(is_proxied=proxy is not None)
        async with session.get(url, headers=headers, proxy=proxy, allow_redirects=False) as answer:
            yield answer


class Repository:
    """One repository in a registry. The token lives as long as this object."""

    def __init__(
        self, client: RegistryClient, name: ImageName, credentials: RegistryCredentials | None, source: _Source
    ) -> None:
        self._client = client
        self._name = name
        self._credentials = credentials
        self._source = source
        self._base = URL(f"{source.origin}/v2/{source.path}/", encoded=True)
        self._authorization: dict[str, str] = {}

    async def manifest(self, reference: str) -> bytes:
        """Return a manifest or index by tag or digest. A digest is verified. Raises an error of `cloud.errors`."""
        return await self._read(f"manifests/{reference}", reference, {"Accept": MANIFEST_TYPES})

    async def blob(self, digest: str) -> bytes:
        """Return a small blob, verified by its digest. Raises an error of `cloud.errors`."""
        return await self._read(f"blobs/{digest}", digest, {})

    async def stream(self, digest: str) -> AsyncGenerator[bytes, None]:
        """Yield a blob of any size, piece by piece. The pieces are not verified. Raises an error of `cloud.errors`.

        Other tasks run between the pieces, also if the next one has been received already.
        """
        with self._translated():
            async with self._opened(self._base.join(URL(f"blobs/{digest}", encoded=True)), {}) as answer:
                async for piece in answer.content.iter_chunked(_PIECE_BYTES):
                    yield piece
                    await asyncio.sleep(0)

    async def _read(self, path: str, reference: str, headers: Mapping[str, str]) -> bytes:
        with self._translated():
            async with self._opened(self._base.join(URL(path, encoded=True)), headers) as answer:
                body = await self._whole(answer, _MAX_BYTES)
        if reference.startswith("sha256:") and f"sha256:{hashlib.sha256(body).hexdigest()}" != reference:
            raise self._unknown(f"sent content that does not match {reference}")
        return body

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn errors of the connection into errors of `cloud.errors`."""
        try:
            yield
        except AddressDenied as error:
            raise self._rejected(
                f"{error}, which the operator does not connect to. Set `command`, or add the registry to the "
                "setting `allowed_registries`"
            ) from error
        except TimeoutError as error:
            raise self._unknown("did not answer in time") from error
        except (ClientError, OSError) as error:
            raise self._unknown(f"cannot be reached ({type(error).__name__})") from error

    @asynccontextmanager
    async def _opened(self, url: URL, headers: Mapping[str, str]) -> AsyncIterator[ClientResponse]:
        """Yield a successful answer; log in once if the registry requires it."""
        for _ in range(2):
            async with self._followed(url, headers) as answer:
                if answer.status == _UNAUTHORIZED and answer.url.origin() == self._base.origin():
                    challenge = answer.headers.get("WWW-Authenticate", "")
                else:
                    self._raise_for_status(answer)
                    yield answer
                    return
            self._authorization = await self._log_in(challenge)
        raise self._no_permission(_UNAUTHORIZED)

    @asynccontextmanager
    async def _followed(self, url: URL, headers: Mapping[str, str]) -> AsyncIterator[ClientResponse]:
        """Yield the answer after redirects. Only the registry itself gets credentials."""
        for _ in range(_MAX_REDIRECTS + 1):
            secret = self._authorization if url.origin() == self._base.origin() else {}
            async with self._client.get(url, {**headers, **secret}) as answer:
                if answer.status not in _REDIRECTS:
                    yield answer
                    return
                url = self._redirect(url, answer.headers.get("Location", ""))
        raise self._unknown(f"redirects more than {_MAX_REDIRECTS} times")

    def _redirect(self, url: URL, location: str) -> URL:
        try:
            target = URL(urljoin(str(url), location))
        except ValueError as error:
            raise self._unknown("redirects to an invalid address") from error
        if target.scheme not in {"https", url.scheme} or not target.host or target.user:
            raise self._unknown("redirects to an address without TLS")
        return target

    async def _log_in(self, challenge: str) -> dict[str, str]:
        if not challenge.lower().startswith("bearer "):
            if self._credentials is None:
                raise self._no_permission(_UNAUTHORIZED)
            return self._basic()
        asked = dict(_CHALLENGE.findall(challenge))
        realm = self._realm(asked.get("realm", ""))
        scope = f"repository:{self._source.path}:pull"
        query = urlencode({"service": asked.get("service", ""), "scope": scope})
        url = URL(f"{realm}{'&' if '?' in realm else '?'}{query}", encoded=True)
        async with self._client.get(url, self._basic()) as answer:
            self._raise_for_status(answer)
            body = await self._whole(answer, _MAX_TOKEN_BYTES)
        return {"Authorization": f"Bearer {self._token(body)}"}

    def _basic(self) -> dict[str, str]:
        if self._credentials is None:
            return {}
        login = f"{self._credentials.username}:{self._credentials.password}"
        return {"Authorization": f"Basic {b64encode(login.encode()).decode()}"}

    def _realm(self, realm: str) -> str:
        """Return the address of the token server, which gets the password: over TLS, or the registry itself."""
        try:
            url = URL(realm, encoded=True)
        except ValueError as error:
            raise self._unknown("names an invalid token server") from error
        is_own = url.scheme == self._base.scheme and url.authority == self._base.authority
        if not url.host or url.user or (url.scheme != "https" and not is_own):
            raise self._unknown("names a token server without TLS")
        return realm

    def _token(self, body: bytes) -> str:
        try:
            reply = untrusted_json.decode(body, _Token)
        except untrusted_json.InvalidJson as error:
            raise self._unknown("returned no token") from error
        token = reply.token or reply.access_token
        if not token or not token.isascii() or not token.isprintable():
            raise self._unknown("returned an invalid token")
        return token

    async def _whole(self, answer: ClientResponse, limit: int) -> bytes:
        body = b""
        while more := await answer.content.read(limit + 1 - len(body)):
            body += more
        if len(body) > limit:
            raise self._rejected(f"it has a manifest or config of more than {limit} bytes. Set `command`")
        return body

    def _raise_for_status(self, answer: ClientResponse) -> None:
        status = answer.status
        if status == _OK:
            return
        if status in {_UNAUTHORIZED, _FORBIDDEN}:
            raise self._no_permission(status)
        if status == _NOT_FOUND:
            raise self._rejected(f"{self._source.title} does not have it. Check the name and the tag, or set `command`")
        if status == _TOO_MANY:
            raise Throttled(
                f"Image {_readable(self._name)} cannot be read now: {self._source.title} limits requests. Retried; set "
                "`command` to do without it.",
                _retry_after(answer.headers.get("Retry-After", "")),
            )
        raise self._unknown(f"answered {status}")

    def _no_permission(self, status: int) -> Rejected:
        if self._credentials is None:
            fix = "Create a pull secret, and name it in `imagePullSecrets`"
        else:
            # Some registries use a token as the name of the user, so the name stays out of events and logs.
            fix = "Check the user and the password of the pull secret, and what this user may read"
        return self._rejected(f"{self._source.title} answered {status}. {fix}")

    def _rejected(self, reason: str) -> Rejected:
        return Rejected(Reason.ENTRYPOINT_UNKNOWN, f"Image {_readable(self._name)} cannot be read: {reason}.")

    def _unknown(self, reason: str) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"Image {_readable(self._name)} cannot be read now: {self._source.title} {reason}. Retried; set "
            "`command` to do without it."
        )


def _readable(name: ImageName) -> str:
    separator = "@" if name.digest else ":"
    return f"{name.registry}/{name.repository}{separator}{name.reference}"


def _is_numeric(host: str) -> bool:
    return ":" in host or re.fullmatch(r"[0-9.]+", host) is not None


def _retry_after(header: str) -> float:
    return min(float(header), _MAX_RETRY_AFTER) if header.isdigit() else _DEFAULT_RETRY_AFTER
