"""Errors of the node's server.

ServerError
├── HttpError           the caller gets `status` and the message
│   ├── BadRequest      400: the request is invalid
│   ├── Unauthenticated 401: the caller is unknown
│   ├── Forbidden       403: the caller lacks a permission, or there is no common protocol
│   ├── NotFound        404: no such pod, container or run on this node
│   ├── NotRunning      400: the container exists, but waits or has ended
│   └── NotSupported    501: the provider does not support the operation
└── PeerGone            the caller has disconnected: stop its work
    └── ProtocolBroken  the peer violated the protocol: close the connection
"""

from __future__ import annotations

from typing import ClassVar


class ServerError(Exception):
    """Root of this tree."""


class HttpError(ServerError):
    """Error with a message for the user, which kubectl prints."""

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
    """The container is not running. Status 400, because the API server replaces the message of most other statuses."""

    status = 400


class NotSupported(HttpError):
    status = 501


class PeerGone(ServerError): ...


class ProtocolBroken(PeerGone): ...
