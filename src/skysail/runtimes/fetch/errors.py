"""Errors of a download, grouped by their fix. The exit code tells the group.

FetchError
├── WrongContent  65  the content cannot be used: change the model or its spec
├── MayPass       75  transient: retry later
│   └── Changed       the file changed: download it from the beginning
├── NotAllowed    77  change permissions, credentials or operator settings
└── ToldWrong     78  change the address or another argument
"""

from __future__ import annotations

import os


def in_words(error: OSError) -> str:
    """Return the system's error text, without the addresses that Python adds."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else "it was interrupted"


class FetchError(Exception):
    """Error of a download. The text is a sentence with the fix; `reason` is one CamelCase word for programs."""

    exit_code = 70

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.step = "Download"


class InvalidContent(FetchError):
    exit_code = 65


class TransientError(FetchError):
    exit_code = 75


class ContentChanged(TransientError):
    def __init__(self, path: str) -> None:
        super().__init__("ServerError", f"{path} changed during the download: do not overwrite a model at its address.")


class AccessDenied(FetchError):
    exit_code = 77


class InvalidArgument(FetchError):
    exit_code = 78
