"""Errors of the server, grouped by their consequence. Every message is a sentence that is shown as it is."""

from __future__ import annotations

from http import HTTPStatus


class ServingError(Exception):
    """Base class of all errors of this server."""


class StartupError(ServingError):
    """The server cannot start: the process exits with `code`."""

    code = 70


class InvalidModel(StartupError):
    """The model's files cannot be served."""

    code = 65


class InvalidSetting(StartupError):
    """A setting is invalid."""

    code = 78


class ModelError(ServingError):
    """The model failed with this input."""


class ClientDisconnected(ServingError):
    """The client has closed its connection."""


class RequestError(ServingError):
    """The request is rejected with a status other than 200 and this sentence."""

    def __init__(self, sentence: str, status: int = HTTPStatus.BAD_REQUEST, *, retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.status = int(status)
        self.retry_after = retry_after
