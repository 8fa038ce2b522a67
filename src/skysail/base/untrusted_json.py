"""Decoding of JSON from untrusted sources: users' pods, servers, error pages in place of an answer."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


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
