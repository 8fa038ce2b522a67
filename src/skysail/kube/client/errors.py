"""Errors of the API server, sorted by what the caller can do.

KubeError
├── Unreachable          the request was never sent: retry later
├── ReplyLost            unknown outcome: read the object, then decide
└── ApiError             the server replied with an error
    ├── NotFound         the object does not exist: often the desired state
    ├── AlreadyExists    the object exists already: read it
    ├── Conflict         the object changed, or was replaced under its name: read it again
    ├── Expired          the resourceVersion is too old: list again
    ├── Forbidden        a permission is missing: report it, a retry does not help
    │   └── Terminating  the namespace is being deleted: nothing can be created in it
    ├── Invalid          the server rejected the request for good: give up and report why
    ├── Throttled        the server asks to wait `retry_after` seconds
    └── ServerFault      the server failed: retry later
        └── NotServed    the path is not served: proves nothing about the object
"""

from __future__ import annotations

import msgspec

# Reason of a ServerFault whose reply cannot be decoded.
UNREADABLE = "Unreadable"
# Truncate messages of the server: they may quote the object, and an object may contain a secret.
_MAX_MESSAGE_LENGTH = 1024
_GATEWAY_TIMEOUT = 504
# The server answers an apply with an invalid body with 500 and no reason; treat it as Invalid.
_UNFIT_TO_APPLY = ("failed to create typed patch object", "failed to convert new object")


class KubeError(Exception):
    """Base of all errors of the API server."""


class Unreachable(KubeError):
    """No connection: certainly nothing was changed."""


class ReplyLost(KubeError):
    """Unknown outcome: the connection broke or timed out after the request was sent."""


class ApiError(KubeError):
    """Error reply of the server, decoded from the Status object in its body."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        answer = f"HTTP {status} {reason}".strip()
        super().__init__(f"{message} ({answer})" if message else answer)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class NotFound(ApiError): ...


class AlreadyExists(ApiError): ...


class Conflict(ApiError): ...


class Expired(ApiError): ...


class Forbidden(ApiError): ...


class Terminating(Forbidden): ...


class Invalid(ApiError): ...


class Throttled(ApiError): ...


class ServerFault(ApiError):
    @property
    def is_timeout(self) -> bool:
        """Return whether the server timed out, so that a write may still have happened."""
        return self.reason in {"Timeout", "ServerTimeout"} or self.status == _GATEWAY_TIMEOUT


class NotServed(ServerFault):
    """Path not served: the kind is missing, or another server replied. Proves nothing about the object."""


class _Cause(msgspec.Struct):
    reason: str = ""
    field: str = ""


class _Details(msgspec.Struct):
    causes: list[_Cause] | None = None
    retryAfterSeconds: int | None = None  # noqa: N815 (wire name)


class Status(msgspec.Struct):
    """The `v1 Status` object, reduced to the fields that distinguish errors."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


_BY_REASON: dict[str, type[ApiError]] = {
    "NotFound": NotFound,
    "AlreadyExists": AlreadyExists,
    "Conflict": Conflict,
    "Expired": Expired,
    "Gone": Expired,
    "Forbidden": Forbidden,
    "Unauthorized": Forbidden,
    "Invalid": Invalid,
    "BadRequest": Invalid,
    "TooManyRequests": Throttled,
}
_UNAVAILABLE = 503
_BY_STATUS: dict[int, type[ApiError]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: NotServed,
    405: Invalid,
    406: Invalid,
    409: Conflict,
    410: Expired,
    413: Invalid,
    415: Invalid,
    422: Invalid,
    429: Throttled,
}


def from_status(status: Status, *, http_status: int = 0, retry_after: float | None = None) -> ApiError:
    """Convert a Status object, from a reply or a watch stream, to an error."""
    code = http_status or status.code
    details = status.details or _Details()
    if retry_after is None and details.retryAfterSeconds is not None:
        retry_after = float(details.retryAfterSeconds)
    kind = _BY_REASON.get(status.reason) or _BY_STATUS.get(code, ServerFault)
    if kind is ServerFault and status.message.startswith(_UNFIT_TO_APPLY):
        kind = Invalid
    if kind is Forbidden and any(cause.reason == "NamespaceTerminating" for cause in details.causes or ()):
        kind = Terminating
    if kind is Invalid and any(cause.field == "metadata.uid" for cause in details.causes or ()):
        # A patch with a wrong UID gets 422, but PUT and DELETE get 409: treat all of them as Conflict.
        kind = Conflict
    if kind is ServerFault and code == _UNAVAILABLE and retry_after is not None:
        kind = Throttled
    return kind(code, status.reason, status.message[:_MAX_MESSAGE_LENGTH], retry_after)


def from_reply(http_status: int, body: bytes, retry_after: float | None = None) -> ApiError:
    """Convert an HTTP reply to an error. A body that is not a Status object, such as a proxy's page, is quoted."""
    try:
        status = msgspec.json.decode(body, type=Status)
    except msgspec.MsgspecError:
        status = Status(code=http_status, message=body[:200].decode(errors="replace"))
    return from_status(status, http_status=http_status, retry_after=retry_after)
