"""Errors of a container's configuration.

Missing
└── InvalidField  a value that no program or file system accepts; the message begins with the path of the field
"""

from __future__ import annotations

from skysail.base.names import EventReason


class Missing(Exception):
    """A mandatory reference of the container does not exist. The container is retried until it does."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class InvalidField(Missing):
    def __init__(self, path: str, problem: str) -> None:
        super().__init__(EventReason.INVALID_FIELD, f"{path}: {problem}")
