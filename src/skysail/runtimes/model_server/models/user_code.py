"""Calls into the model: its code, and the libraries that run it, may raise anything."""

from __future__ import annotations

from collections.abc import Callable
from traceback import TracebackException
from typing import TypeVar

from skysail.runtimes.model_server.errors import ModelError, ServingError

_Result = TypeVar("_Result")
_LENGTH = 300


def call_user_code(function: Callable[..., _Result], *arguments: object) -> _Result:
    """Call the function. Raises ModelError for any error except ServingError."""
    try:
        return function(*arguments)
    except ServingError:
        raise
    except BaseException as error:  # a model may call exit() or panic in Rust
        raise ModelError(_error_message(error)) from error


def _error_message(error: BaseException) -> str:
    """Return the useful part of an error: libraries add pages about their internals."""
    text = str(TracebackException(type(error), error, None))  # str() of an error may fail, too
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    useful = lines[-1] if lines and lines[0].startswith("The following operation failed") else " ".join(lines[:2])
    return (useful or type(error).__name__)[:_LENGTH].rstrip(".")
