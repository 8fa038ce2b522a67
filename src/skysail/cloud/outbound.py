"""TCP connections to clouds, through the HTTP proxy of the environment if there is one.

Clouds are often reached only through a proxy: from the local cluster, and from many companies' clusters. The variables
are those of every other program: `HTTPS_PROXY` and `NO_PROXY`.
"""

from __future__ import annotations

import asyncio
import ssl
import urllib.request

from python_socks import ProxyError
from python_socks.async_.asyncio import Proxy
from yarl import URL

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_HTTP_SCHEMES = frozenset({"http", "https"})


async def open_connection(
    host: str, port: int, tls: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a host, over TLS if a context is given. Raises OSError."""
    proxy = None if urllib.request.proxy_bypass(host) else urllib.request.getproxies().get("https")
    if proxy is None:
        return await asyncio.open_connection(host, port, ssl=tls)
    try:
        tunnel = await Proxy.from_url(proxy).connect(host, port)
    except ValueError as error:
        name = _without_login(proxy)
        raise OSError(f"HTTPS_PROXY names {name}, which cannot be used: set it to http://host:port") from error
    except ProxyError as error:
        raise OSError(f"the proxy {_without_login(proxy)} does not connect to {host}:{port}: {error}") from error
    try:
        return await asyncio.open_connection(sock=tunnel, ssl=tls, server_hostname=host if tls else None)
    except BaseException:
        tunnel.close()
        raise


def http_proxy(url: URL) -> URL | None:
    """Return the proxy for an HTTP request, or None for this machine and for the hosts of `NO_PROXY`.

    The `trust_env` of aiohttp would also send the passwords of `~/.netrc`, here to servers of tenants.
    """
    host = url.host or ""
    if host in _LOOPBACK or urllib.request.proxy_bypass(host):
        return None
    text = urllib.request.getproxies().get(url.scheme, "")
    found = URL(text if "://" in text else f"http://{text}") if text else None
    return found if found is not None and found.scheme in _HTTP_SCHEMES else None


def _without_login(proxy: str) -> str:
    """Return the address of a proxy without the password that it may contain."""
    return proxy.rpartition("@")[2]
