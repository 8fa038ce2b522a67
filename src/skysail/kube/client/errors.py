"""What can go wrong at the API server, sorted by what the caller can do about it.

KubeError
├── Unreachable          the request was never sent: try again later
├── ReplyLost            it may or may not have been done: look, then decide
└── ApiError             the server answered and said no
    ├── NotFound         it is not there: often the wish itself
    ├── AlreadyExists    somebody made it first: look at what is there
    ├── Conflict         it changed under us, or is another object of that name: read again
    ├── Expired          that resourceVersion is history: list again
    ├── Forbidden        a right is missing: ask for it, retrying is no cure
    │   └── Terminating  the namespace is on its way out: nothing may be made there any more
    ├── Invalid          the server will never take this: give up and say why
    ├── Throttled        the server asks us to wait `retry_after` seconds
    └── ServerFault      the server has a problem of its own: try again later
        └── NotServed    nobody answers at this path: no word about an object
"""

from __future__ import annotations

import msgspec

# A message of the server may quote the object, and an object may hold a secret: keep what a person reads, no more.
_LONGEST_MESSAGE = 1024
_GATEWAY_TIMEOUT = 504
# An apply whose body is no such object is answered with 500 and no reason, as if the server were to blame.
_UNFIT_TO_APPLY = ("failed to create typed patch object", "failed to convert new object")


class KubeError(Exception):
    """Root of this tree."""


class Unreachable(KubeError):
    """No connection: certainly nothing was done."""


class ReplyLost(KubeError):
    """The connection broke or timed out after the request was sent: nobody here knows whether it was done."""


class ApiError(KubeError):
    """The server's answer, read from the Status object in its body."""

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
        """Whether the server gave up waiting, so that a write may have happened all the same."""
        return self.reason in {"Timeout", "ServerTimeout"} or self.status == _GATEWAY_TIMEOUT


class NotServed(ServerFault):
    """Nobody answers at this path: the kind is not served, or this was not the API server. No word about an object."""


class _Cause(msgspec.Struct):
    reason: str = ""
    field: str = ""


class _Details(msgspec.Struct):
    causes: list[_Cause] | None = None
    retryAfterSeconds: int | None = None  # noqa: N815 (wire name)


class Status(msgspec.Struct):
    """The `v1 Status` object, as far as it tells one failure from another."""

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
    """The error that a Status object stands for, in a reply or inside a watch stream."""
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
        # A patch meant for an object that was replaced under its name: PUT and DELETE answer 409 to the same.
        kind = Conflict
    if kind is ServerFault and code == _UNAVAILABLE and retry_after is not None:
        kind = Throttled
    return kind(code, status.reason, status.message[:_LONGEST_MESSAGE], retry_after)


def from_reply(http_status: int, body: bytes, retry_after: float | None = None) -> ApiError:
    """The error that an HTTP reply stands for; a body that is no Status object (a proxy's page) is quoted as text."""
    try:
        status = msgspec.json.decode(body, type=Status)
    except msgspec.MsgspecError:
        status = Status(code=http_status, message=body[:200].decode(errors="replace"))
    return from_status(status, http_status=http_status, retry_after=retry_after)
