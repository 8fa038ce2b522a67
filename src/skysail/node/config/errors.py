"""Why a container cannot be configured.

Missing
└── InvalidField  a value that no program or file system can take; the message begins with the path of the field
"""

from __future__ import annotations

from skysail.base.names import EventReason


class Missing(Exception):
    """Something mandatory that the container refers to is not there: it cannot be started until it is."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class InvalidField(Missing):
    def __init__(self, path: str, problem: str) -> None:
        super().__init__(EventReason.INVALID_FIELD, f"{path}: {problem}")
