import asyncio

import pytest
from modal import exception

from skysail.cloud import errors as cloud_errors
from skysail.cloud.modal import errors
from tests.support import virtual_time


@pytest.mark.parametrize(
    ("error", "want"),
    [
        (exception.NotFoundError("x"), cloud_errors.Gone),
        (exception.AuthError("x"), cloud_errors.OutcomeUnknown),
        (exception.ResourceExhaustedError("x"), cloud_errors.Throttled),
        (exception.ServiceError("x"), cloud_errors.OutcomeUnknown),
        (TimeoutError("x"), cloud_errors.OutcomeUnknown),
        (exception.ConnectionError("x"), cloud_errors.OutcomeUnknown),
    ],
)
def test_error_of_a_read(error, want):
    assert type(errors.of_read(error)) is want


@pytest.mark.parametrize(
    ("error", "want"),
    [
        (exception.ServiceError("x"), cloud_errors.Throttled),
        (exception.AuthError("x"), cloud_errors.Throttled),
        (exception.PermissionDeniedError("x"), cloud_errors.Throttled),
        (exception.NotFoundError("x"), cloud_errors.Rejected),
        (exception.InvalidError("x"), cloud_errors.Rejected),
        (ValueError("x"), cloud_errors.Rejected),
        (TimeoutError("x"), cloud_errors.Throttled),
    ],
)
def test_error_before_the_creation_proves_that_nothing_exists(error, want):
    assert type(errors.of_preparation(error)) is want


@pytest.mark.parametrize(
    ("error", "want"),
    [
        (exception.InvalidError("x"), cloud_errors.Rejected),
        (exception.ConflictError("x"), cloud_errors.Rejected),
        (exception.ResourceExhaustedError("x"), cloud_errors.Throttled),
        (exception.AuthError("x"), cloud_errors.Throttled),
        (exception.ServiceError("x"), cloud_errors.OutcomeUnknown),
        (exception.InternalError("x"), cloud_errors.OutcomeUnknown),
        (exception.ConnectionError("x"), cloud_errors.OutcomeUnknown),
        (exception.ClientClosed("x"), cloud_errors.OutcomeUnknown),
        (OSError("x"), cloud_errors.OutcomeUnknown),
        (ValueError("x"), cloud_errors.OutcomeUnknown),
    ],
)
def test_error_of_the_creation_is_unknown_unless_modal_rejected_it(error, want):
    assert type(errors.of_creation(error)) is want


def test_rejected_token_says_how_to_fix_it():
    assert "Update the Secret" in str(errors.of_read(exception.AuthError("bad token")))


async def _stubborn() -> None:
    """Ignore one cancellation, as a call of the SDK that cleans up, and then never return."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.Event().wait()


def test_bounded_call_that_never_settles_is_left_alone():
    async def run() -> None:
        with pytest.raises(TimeoutError, match="did not answer in 5 seconds"):
            await errors.bounded(_stubborn(), 5.0, "answer")

    virtual_time.run(run())


def test_bounded_call_that_is_cancelled_is_cancelled():
    seen = []

    async def call() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cleaned up")

    async def run() -> None:
        task = asyncio.ensure_future(errors.bounded(call(), 60.0, "answer"))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    virtual_time.run(run())
    assert seen == ["cleaned up"]
