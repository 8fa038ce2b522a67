"""The border to the model: its code, and the libraries that run it, may raise anything at all."""

from __future__ import annotations

from collections.abc import Callable
from traceback import TracebackException
from typing import TypeVar

from skysail.runtimes.model_server.errors import ModelError, ServingError

_Result = TypeVar("_Result")
_LENGTH = 300


def call(function: Callable[..., _Result], *arguments: object) -> _Result:
    """Raises ModelError for whatever was raised there."""
    try:
        return function(*arguments)
    except ServingError:
        raise
    except BaseException as error:  # the only broad one of this process; a model may call exit(), or panic in Rust
        raise ModelError(_told(error)) from error


def _told(error: BaseException) -> str:
    """What a person can use of it: libraries begin, or end, with pages about their own insides."""
    text = str(TracebackException(type(error), error, None))  # an error may fail to be told as well
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    useful = lines[-1] if lines and lines[0].startswith("The following operation failed") else " ".join(lines[:2])
    return (useful or type(error).__name__)[:_LENGTH].rstrip(".")
