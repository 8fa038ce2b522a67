"""What a volume says when it cannot, as one of our errors."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skysail.runtimes.fetch.errors import FetchError, MayPass, NotAllowed, WrongContent, in_words

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_MISNAMED = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY)


@contextmanager
def disk(folder: Path) -> Iterator[None]:
    """Raises FetchError. What nobody foresaw, such as a server of volumes that is away, may pass."""
    try:
        yield
    except OSError as error:
        raise _told_by_disk(error, folder) from error


def _told_by_disk(error: OSError, folder: Path) -> FetchError:
    if error.errno in _FULL:
        return WrongContent("TooLarge", f"The volume of {folder} is full: use a larger one, or a smaller model.")
    if error.errno in _CLOSED:
        return NotAllowed("AccessDenied", f"{error.filename} may not be written or read: {error.strerror}.")
    if error.errno in _MISNAMED:
        return WrongContent(
            "UnsupportedFormat", f"Files of the model have names that exclude each other: {error.filename}."
        )
    if error.errno == errno.ENAMETOOLONG:
        return WrongContent("UnsupportedFormat", f"A file of the model has too long a name: rename {error.filename}.")
    return MayPass(
        "ServerError",
        f"A volume or disk failed while {folder} was written: {in_words(error)}. It is tried again; if that does not"
        " help, look at the volume and at its node.",
    )
