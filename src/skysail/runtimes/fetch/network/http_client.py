"""HTTP client that checks every hop: the URI, the addresses of its host, and every redirect.

Credentials are sent only to the original host, port and scheme: a redirect elsewhere drops them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from ssl import SSLContext
from types import TracebackType
from typing import Self
from urllib.parse import quote, urldefrag, urljoin, urlsplit

from aiohttp import (
    ClientError,
    ClientHttpProxyError,
    ClientResponse,
    ClientSession,
    ClientSSLError,
    ClientTimeout,
    DummyCookieJar,
    TCPConnector,
)
from yarl import URL

from skysail.runtimes.fetch.errors import AccessDenied, InvalidArgument, TransientError, in_words
from skysail.runtimes.fetch.network import tls
from skysail.runtimes.fetch.network.proxy_env import ProxyEnv
from skysail.runtimes.fetch.network.resolver import AddressGuard, PolicyResolver
from skysail.runtimes.fetch.network.uris import redact

_MAX_HOPS = 10
_REDIRECTS = (301, 302, 303, 307, 308)
_PASSING = (408, 425, 429)
_TIMEOUT = ClientTimeout(total=None, sock_connect=10, sock_read=15)
# Disable compression: sizes and hashes are those of the stored file.
_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "skysail-fetch"}
_OF_AN_ADDRESS = "%/:=&?~+!$,;'@()*[]"
ANSWERS = (200, 206, 416)


class HttpClient:
    """HTTP client for one download."""

    def __init__(self, address_guard: AddressGuard, proxy_env: ProxyEnv, trust: SSLContext) -> None:
        self._address_guard = address_guard
        self._proxy_env = proxy_env
        self._trust = trust
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        resolver = PolicyResolver(self._address_guard)
        direct = TCPConnector(resolver=resolver, use_dns_cache=False, ssl=self._trust)
        self._direct = await self._open.enter_async_context(_session(direct))
        # Only the proxy's own name is resolved here, and the cluster chose the proxy.
        self._proxied = await self._open.enter_async_context(_session(TCPConnector(ssl=self._trust)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._open.aclose()

    @asynccontextmanager
    async def get(
        self, url: str, headers: Mapping[str, str], *, secret: Mapping[str, str], accept: tuple[int, ...] = ANSWERS
    ) -> AsyncIterator[ClientResponse]:
        """Yield the response after all redirects, if its status is in `accept`.

        `secret` are headers for the original host only.
        """
        here, hops = url, 0
        while True:
            proxy = await self._proxy(here)
            sent = {**headers, **secret} if origin(here) == origin(url) else headers
            try:
                async with self._ask(here, sent, proxy) as answer:
                    if answer.status not in _REDIRECTS:
                        _raise_for_status(answer, url, accept)
                        yield answer
                        return
                    here = _next(here, answer.headers.get("Location", ""))
            except (ClientError, TimeoutError, ConnectionError) as error:
                raise _unreachable(url, error) from error
            hops += 1
            if hops > _MAX_HOPS:
                raise InvalidArgument(
                    "NotFound", f"{redact(url)} redirects more than {_MAX_HOPS} times: use the final address."
                )

    async def _proxy(self, url: str) -> str | None:
        """Check the address and return the proxy to use, if any. Raises AccessDenied."""
        self._address_guard.check(url)
        target = URL(url, encoded=True)
        proxy = self._proxy_env.for_host(target.scheme, target.host or "")
        if proxy is not None:
            await self._address_guard.check_literal_address(target.host or "", target.port or 0)
        return proxy

    @asynccontextmanager
    async def _ask(self, url: str, headers: Mapping[str, str], proxy: str | None) -> AsyncIterator[ClientResponse]:
        session = self._direct if proxy is None else self._proxied
        target = URL(url, encoded=True)
        async with session.get(target, headers=headers, proxy=proxy, allow_redirects=False) as answer:
            yield answer


def _session(connector: TCPConnector) -> ClientSession:
    return ClientSession(
        connector=connector,
        headers=_HEADERS,
        timeout=_TIMEOUT,
        auto_decompress=False,
        cookie_jar=DummyCookieJar(),
        read_bufsize=2**20,
    )


def origin(url: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port. Credentials for one origin must not go to another."""
    parts = URL(url, encoded=True)
    return parts.scheme, parts.host, parts.port


def _next(here: str, location: str) -> str:
    """Return the redirect target.

    Invalid characters in a Location are encoded, so that they cannot become part of a host.
    """
    try:
        there = quote(urldefrag(urljoin(here, location)).url, safe=_OF_AN_ADDRESS)
    except ValueError as error:
        raise AccessDenied(
            "AddressForbidden", f"{redact(here)} redirects to an invalid address: use another one."
        ) from error
    if urlsplit(there).scheme not in {"https", urlsplit(here).scheme}:
        raise AccessDenied(
            "AddressForbidden",
            f"{redact(here)} redirects to {redact(there)}, which is not https: use an address that stays on https.",
        )
    return there


def _raise_for_status(answer: ClientResponse, url: str, accept: tuple[int, ...]) -> None:
    status = f"{answer.status} {answer.reason or ''}".strip()
    if answer.status in accept:
        return
    if answer.status in {401, 403}:
        raise AccessDenied(
            "AccessDenied",
            f"{redact(url)} answered {status}: put credentials that may read it into the Secret of "
            "`credentialsSecret`.",
        )
    if answer.status in _PASSING or answer.status >= 500:  # noqa: PLR2004  # HTTP's own classes
        raise TransientError("ServerError", f"{redact(url)} answered {status}: the server is unavailable.")
    raise InvalidArgument("NotFound", f"{redact(url)} answered {status}: check the address, and that the model exists.")


def _unreachable(url: str, error: Exception) -> Exception:
    """Return the error for a failed request. The original text is dropped, as it may hold a query or a password."""
    host = urlsplit(url).hostname
    if isinstance(error, ClientHttpProxyError):
        if error.status == 403:  # noqa: PLR2004  # Forbidden
            return AccessDenied(
                "AddressForbidden", f"The cluster's proxy rejects connections to {host}: allow them there."
            )
        return TransientError(
            "Unreachable", f"The cluster's proxy cannot connect to {host}: it answered {error.status}."
        )
    if isinstance(error, ClientSSLError):
        return tls.untrusted(f"{host}")
    if isinstance(error, TimeoutError):
        return TransientError("Unreachable", f"{host} did not answer in time.")
    cause = next((one for one in (error.__cause__, error) if isinstance(one, OSError)), OSError())
    return TransientError("Unreachable", f"The connection to {host} failed: {in_words(cause)}.")
