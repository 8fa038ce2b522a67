"""What a volume says when it cannot, as one of our errors."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skysail.runtimes.fetch.errors import FetchError, NotAllowed, WrongContent

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_MISNAMED = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENAMETOOLONG)


@contextmanager
def disk(folder: Path) -> Iterator[None]:
    """Raises FetchError in place of what is known; what is not known passes."""
    try:
        yield
    except OSError as error:
        told = _told_by_disk(error, folder)
        if told is None:
            raise
        raise told from error


def _told_by_disk(error: OSError, folder: Path) -> FetchError | None:
    if error.errno in _FULL:
        return WrongContent("TooLarge", f"The volume of {folder} is full: use a larger one, or a smaller model.")
    if error.errno in _CLOSED:
        return NotAllowed("AccessDenied", f"{error.filename} may not be written or read: {error.strerror}.")
    if error.errno in _MISNAMED:
        return WrongContent(
            "UnsupportedFormat", f"Files of the model have names that exclude each other: {error.filename}."
        )
    return None
