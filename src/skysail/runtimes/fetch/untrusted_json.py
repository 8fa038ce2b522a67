"""JSON of which nobody knows who wrote it: a registry, a page in place of its answer, a volume that others write to."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


class Unreadable(ValueError):
    """Its text says why, and may stand in a sentence."""


def read(written: bytes | str, kind: type[T]) -> T:
    """Raises Unreadable, and nothing else: what is no text or has no bottom is no defect of ours."""
    try:
        return msgspec.json.decode(written, type=kind)
    except RecursionError as error:
        raise Unreadable("it is nested too deeply") from error
    except UnicodeError as error:
        raise Unreadable("it is not UTF-8") from error
    except msgspec.DecodeError as error:
        raise Unreadable(str(error)) from error
