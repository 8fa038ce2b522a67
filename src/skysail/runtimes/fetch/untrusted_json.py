"""JSON from untrusted sources: a registry, a web page in place of its answer, or a volume that others write to."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


class InvalidJson(ValueError):
    """Input that cannot be decoded. The text gives the reason, as part of a sentence."""


def decode(written: bytes | str, kind: type[T]) -> T:
    """Decode untrusted JSON.

    Raises `InvalidJson`, and nothing else, for input that is not UTF-8, does not match `kind` or is nested too deeply.
    """
    try:
        return msgspec.json.decode(written, type=kind)
    except RecursionError as error:
        raise InvalidJson("it is nested too deeply") from error
    except UnicodeError as error:
        raise InvalidJson("it is not UTF-8") from error
    except msgspec.DecodeError as error:
        raise InvalidJson(str(error)) from error
