"""What can go wrong, sorted by what whoever started this can do about it. The exit code tells which it was.

FetchError
├── WrongContent  65  what is there cannot be used: change the model, or what is said of it
├── MayPass       75  try again later
│   └── Changed       what had come of a file is of no use any more: begin it anew
├── NotAllowed    77  change rights, credentials, or the settings of the operator
└── ToldWrong     78  change the address, or another argument
"""

from __future__ import annotations

import os


def in_words(error: OSError) -> str:
    """What the system says of it, without the addresses that Python adds."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else "it was cut in the middle"


class FetchError(Exception):
    """Its text is a sentence with the fix in it; `reason` is one CamelCase word for programs."""

    exit_code = 70

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.step = "Download"


class WrongContent(FetchError):
    exit_code = 65


class MayPass(FetchError):
    exit_code = 75


class Changed(MayPass):
    def __init__(self, path: str) -> None:
        super().__init__(
            "ServerError", f"{path} changed while it was downloaded: keep a model as it is under its address."
        )


class NotAllowed(FetchError):
    exit_code = 77


class ToldWrong(FetchError):
    exit_code = 78
