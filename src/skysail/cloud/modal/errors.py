"""Errors of the SDK as errors of `cloud.errors`, sorted by what the caller can do."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from grpclib import GRPCError
from grpclib.exceptions import StreamTerminatedError
from modal import exception

from skysail.cloud.errors import Gone, OutcomeUnknown, ProviderError, Rejected, Throttled

# Errors that a call of the SDK may raise. Others are defects, and are logged with their traceback.
SDK_ERRORS = (exception.Error, GRPCError, StreamTerminatedError, OSError, TimeoutError, ValueError)
# Wait this long before a call is repeated after an error that only an administrator can fix.
_FIX_SECONDS = 60.0
_RETRY_SECONDS = 10.0
_MAX_TEXT = 500
# A cancelled call gets this long to clean up.
_CANCEL_SECONDS = 15.0

T = TypeVar("T")


async def bounded(call: Coroutine[Any, Any, T], seconds: float, what: str) -> T:
    """Await a call of the SDK with a deadline of ours: some calls never return.

    Raises the SDK's error, or TimeoutError after the deadline. A cancelled call may clean up for a short time, and is
    left alone afterwards.
    """
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        await _cancel(task)
        raise
    if not task.done():
        await _cancel(task)
        raise TimeoutError(f"Modal did not {what} in {seconds:.0f} seconds.")
    return task.result()


async def _cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()
    task.add_done_callback(_discard)
    await asyncio.wait({task}, timeout=_CANCEL_SECONDS)


def _discard(task: asyncio.Future[Any]) -> None:
    """Read the result of an abandoned call, so that its error is not reported as never retrieved."""
    if not task.cancelled():
        task.exception()


def text(error: BaseException) -> str:
    """Return the message of an error on one line, without a trailing full stop."""
    found = " ".join(str(error).split()) or type(error).__name__
    return found[:_MAX_TEXT].rstrip(".")


def of_read(error: BaseException) -> ProviderError:
    """Return the error of a call that changes nothing."""
    match error:
        case exception.NotFoundError():
            return Gone(f"Modal does not have it: {text(error)}.")
        case exception.AuthError() | exception.PermissionDeniedError():
            return OutcomeUnknown(f"{_refused(error)}")
        case exception.ResourceExhaustedError():
            return Throttled(f"Modal throttles its API: {text(error)}.", _RETRY_SECONDS)
        case _:
            return OutcomeUnknown(f"Modal does not answer: {text(error)}.")


def of_preparation(error: BaseException) -> ProviderError:
    """Return the error of a step before the creation. Certainly nothing was created, so nothing has to be checked."""
    match error:
        case exception.ImageBuildError() | exception.RemoteError():
            return Rejected("ErrImagePull", f"Modal cannot build the image: {text(error)}.")
        case exception.AuthError() | exception.PermissionDeniedError():
            return Throttled(f"{_refused(error)}", _FIX_SECONDS)
        case exception.NotFoundError():
            return Rejected("NotFound", f"Modal does not have what the pod needs: {text(error)}.")
        case exception.InvalidError() | exception.AlreadyExistsError():
            return Rejected("InvalidSpec", f"Modal rejects the pod: {text(error)}.")
        case ValueError():
            return Rejected("InvalidSpec", f"Modal's client rejects the pod: {text(error)}.")
        case _:
            return Throttled(f"Modal does not answer: {text(error)}.", _RETRY_SECONDS)


def of_creation(error: BaseException) -> ProviderError:
    """Return the error of the creation. Only a clear rejection proves that nothing was created."""
    match error:
        case exception.ConflictError():
            return Rejected("StartError", f"Modal could not start the sandbox: {text(error)}.")
        case exception.ResourceExhaustedError():
            return Throttled(f"Modal accepts no more sandboxes now: {text(error)}.", _RETRY_SECONDS)
        case (
            exception.InvalidError()
            | exception.NotFoundError()
            | exception.AuthError()
            | exception.PermissionDeniedError()
            | exception.ImageBuildError()
        ):
            return of_preparation(error)
        case _:
            return OutcomeUnknown(f"Modal's answer to the creation is lost: {text(error)}.")


def _refused(error: BaseException) -> str:
    return f"Modal rejects the token: {text(error)}. Update the Secret with Modal's credentials."
