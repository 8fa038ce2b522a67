"""Translation of errors of volumes into ours."""

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
    """Raise FetchError instead of OSError. An unexpected error, such as an unavailable volume server, is transient."""
    try:
        yield
    except OSError as error:
        raise _told_by_disk(error, folder) from error


def _told_by_disk(error: OSError, folder: Path) -> FetchError:
    if error.errno in _FULL:
        return WrongContent("TooLarge", f"The volume of {folder} is full: use a larger volume, or a smaller model.")
    if error.errno in _CLOSED:
        return NotAllowed("AccessDenied", f"{error.filename} cannot be read or written: {error.strerror}.")
    if error.errno in _MISNAMED:
        return WrongContent("UnsupportedFormat", f"Files of the model have conflicting names: rename {error.filename}.")
    if error.errno == errno.ENAMETOOLONG:
        return WrongContent("UnsupportedFormat", f"The name of a model file is too long: rename {error.filename}.")
    return MayPass(
        "ServerError",
        f"A volume or disk failed while {folder} was written: {in_words(error)}. If retries do not help, check the"
        " volume and its node.",
    )
