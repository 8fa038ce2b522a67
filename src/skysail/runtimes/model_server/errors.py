"""What goes wrong, by what can be done about it. Every message is a sentence that is shown as it is."""

from __future__ import annotations

from http import HTTPStatus


class ServingError(Exception):
    """Any failure of this server."""


class CannotServe(ServingError):
    """There is no use in going on: the process ends with `code`."""

    code = 70


class WrongModel(CannotServe):
    """The model's files cannot be served as they are."""

    code = 65


class WrongSetting(CannotServe):
    """The server was told something that cannot be."""

    code = 78


class ModelError(ServingError):
    """The model itself has failed, with this input."""


class Left(ServingError):
    """The client has closed its connection: nobody waits for an answer."""


class Refused(ServingError):
    """A request is answered with a status other than 200, and with this sentence."""

    def __init__(self, sentence: str, status: int = HTTPStatus.BAD_REQUEST, *, retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.status = int(status)
        self.retry_after = retry_after
