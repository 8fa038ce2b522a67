"""Decoding of JSON from untrusted sources: users' pods, servers, error pages in place of an answer."""

from __future__ import annotations

import sys
from typing import TypeVar

import msgspec

T = TypeVar("T")

# The API server stores and returns objects that are nested up to 10,000 levels deep. Python's default recursion limit
# is
# a tenth of that, so one such object of one tenant would break the watch for all tenants.
MAX_NESTING = 10_000


class InvalidJson(ValueError):
    """Invalid input. The message is a clause that fits into a sentence."""


def decode(written: bytes | str, kind: type[T]) -> T:
    """Decode untrusted JSON. Raises InvalidJson, and nothing else, for input that is invalid or nested too deeply."""
    try:
        return msgspec.json.decode(written, type=kind)
    except RecursionError as error:
        raise InvalidJson("it is nested too deeply") from error
    except UnicodeError as error:
        raise InvalidJson("it is not UTF-8") from error
    except msgspec.DecodeError as error:
        raise InvalidJson(str(error)) from error


def raise_recursion_limit() -> None:
    """Raise the recursion limit of this process: decoders need one frame per level, and callers need some more."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 2 * MAX_NESTING))
