"""How far a download is, as it tells in its log, and how often that is looked at. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from skysail.base.timestamps import timestamp
from skysail.kinds.model.snapshot import Snapshot
from skysail.kinds.model.types import Download

# How often the log is read, and the status written for that alone.
_PAUSE = timedelta(seconds=10)
_MOST_SECONDS = 2**31 - 1
_MOST_BYTES = 2**53 - 1


class _Progress(msgspec.Struct, frozen=True):
    """The last line of a download's log."""

    bytes: int
    total: int | None = None
    seconds_left: float | None = None


def download(line: str, now: datetime) -> Download | None:
    """How far it is, as the line says; None where it says something else."""
    try:
        told = msgspec.json.decode(line.strip(), type=_Progress)
    except msgspec.DecodeError:
        return None
    here, total = min(max(told.bytes, 0), _MOST_BYTES), told.total
    is_known = total is not None and here <= total <= _MOST_BYTES and total > 0
    left = told.seconds_left
    return Download(
        bytes=here,
        total=total if is_known else None,
        percent=here * 100 // total if total is not None and is_known else None,
        remaining_seconds=int(left) if left is not None and 0 <= left <= _MOST_SECONDS else None,
        last_updated_time=timestamp(now),
    )


def is_due(snapshot: Snapshot, revision: str) -> bool:
    status = snapshot.object.status
    known = status.download.last_updated_time if status.download is not None else None
    if known is None or status.candidate != revision:
        return True
    return snapshot.now - datetime.fromisoformat(known) >= _PAUSE
