"""Translation of errors of volumes into ours."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skysail.runtimes.fetch.errors import AccessDenied, FetchError, InvalidContent, TransientError, in_words

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_MISNAMED = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY)


@contextmanager
def translate_os_errors(folder: Path) -> Iterator[None]:
    """Raise FetchError instead of OSError. An unexpected error, such as an unavailable volume server, is transient."""
    try:
        yield
    except OSError as error:
        raise _translate(error, folder) from error


def _translate(error: OSError, folder: Path) -> FetchError:
    if error.errno in _FULL:
        return InvalidContent("TooLarge", f"The volume of {folder} is full: use a larger volume, or a smaller model.")
    if error.errno in _CLOSED:
        return AccessDenied("AccessDenied", f"{error.filename} cannot be read or written: {error.strerror}.")
    if error.errno in _MISNAMED:
        return InvalidContent(
            "UnsupportedFormat", f"Files of the model have conflicting names: rename {error.filename}."
        )
    if error.errno == errno.ENAMETOOLONG:
        return InvalidContent("UnsupportedFormat", f"The name of a model file is too long: rename {error.filename}.")
    return TransientError(
        "ServerError",
        f"A volume or disk failed while {folder} was written: {in_words(error)}. If retries do not help, check the"
        " volume and its node.",
    )
