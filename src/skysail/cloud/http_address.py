"""Addresses of HTTP servers at clouds: a URL, and headers that authenticate the caller.

An account implements `HttpAccount` in addition to `CloudAccount` if its cloud has a way of its own for HTTP. The
bridge asks for the address, and never shows the headers to anybody.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec
from yarl import URL

# Modal adds this to the address of the result of a slow request.
_FUNCTION_CALL = "__modal_function_call_id"


class HttpAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Address of one port of one instance.

    `url` has a scheme and a host, and may have a path, which is put before the path of each request.
    `headers` are sent with each request in place of the caller's headers of the same name. They are secrets, so they do
    not appear in the repr.
    `expires` is the time in seconds since 1970 at which the address must be asked for again; None means never.
    `verifies` is whether the certificate of the server is checked. It is not only for a stand-in on this machine.
    """

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    expires: float | None = None
    verifies: bool = True

    def __repr__(self) -> str:
        return f"HttpAddress(url={self.url!r}, headers={[name for name, _ in self.headers]!r})"


@runtime_checkable
class HttpAccount(Protocol):
    """An account whose cloud forwards HTTP to ports of instances."""

    async def http_address(self, instance: str, port: int) -> HttpAddress:
        """Return the address of an HTTP server at a port of an instance. Raises errors of `cloud.errors`."""
        ...


def follows(status: int, location: str, base: URL, current: URL) -> URL | None:
    """Return where the result of a slow request will be: a 303 to the same server, with the id of a function call.

    Returns None for other answers, which are passed to the caller: a redirect of the server's own program is for the
    caller, and the credentials must not follow a redirect to another host.
    """
    if status != 303 or not location:  # noqa: PLR2004 (See Other)
        return None
    try:
        url = current.join(URL(location, encoded=True))
        same = url.origin() == base.origin() and url.user is None and url.password is None
    except ValueError:
        return None
    return url if same and url.query.get(_FUNCTION_CALL) else None
