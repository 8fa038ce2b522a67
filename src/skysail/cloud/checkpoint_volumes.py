"""Volumes of a cloud that hold checkpoints: their names, and the result of a deletion. Pure."""

from __future__ import annotations

import hashlib
from datetime import datetime

import msgspec


class VolumeDeletion(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a call that deletes a volume. `problem` is a sentence, empty if the volume is deleted.

    `first_at`: when this process called the cloud for the first time. `at`: when the last call ended. `is_final`:
    another call would have the same result.
    """

    first_at: datetime
    at: datetime
    problem: str = ""
    is_final: bool = False


def volume_id(namespace: str, uid: str) -> str:
    """Return the name of a TrainingJob's volume. The namespace is part of it, because tenants can write the UID."""
    return f"{uid[:63]}-{hashlib.sha256(namespace.encode()).hexdigest()[:8]}"
