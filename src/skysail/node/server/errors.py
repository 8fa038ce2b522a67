"""What can go wrong while a caller is served, sorted by who has to hear of it.

ServerError
├── Refusal             the caller gets `status` and this text
│   ├── BadRequest      400: the request itself makes no sense
│   ├── Unauthenticated 401: nobody knows who is calling
│   ├── Forbidden       403: known, but without the right, or without a protocol in common
│   ├── NoSuch          404: no such pod, container or run on this node
│   ├── NotRunning      400: it is there, but waits or has ended
│   └── CannotDo        501: this provider has no way to do it
└── PeerGone            there is nobody left to tell: stop what was done for them
    └── ProtocolBroken  the peer sent what no peer may send; the connection cannot go on
"""

from __future__ import annotations

from typing import ClassVar


class ServerError(Exception):
    """Root of this tree."""


class HttpError(ServerError):
    """Its text is a sentence for the user; kubectl prints it."""

    status: ClassVar[int] = 500


class BadRequest(HttpError):
    status = 400


class Unauthenticated(HttpError):
    status = 401


class Forbidden(HttpError):
    status = 403


class NotFound(HttpError):
    status = 404


class NotRunning(HttpError):
    """400, because the API server replaces the text of most other answers by a sentence of its own."""

    status = 400


class NotSupported(HttpError):
    status = 501


class PeerGone(ServerError): ...


class ProtocolBroken(PeerGone): ...
