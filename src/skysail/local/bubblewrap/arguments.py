"""Options of bubblewrap as the content of the file for `--args`. Nothing else writes that file.

bubblewrap reads words that each end with a NUL byte, so a NUL byte inside a word would start a new option.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

# bubblewrap accepts 9,000 words, including its own command line; the rest is reserved for that.
_MAX_WORDS = 8_900
_NUL = (
    "A NUL byte cannot be part of a command, an argument, an environment variable, a path or a host name: "
    "remove it, or mount the value as a file."
)


class InvalidArgument(ValueError):
    """A word that cannot be passed to a program. The text is a sentence for the user."""


def open_file(options: Sequence[str], command: Sequence[str]) -> int:
    """Return the descriptor of an unnamed file with these options, for a container that runs `command`.

    Raises InvalidArgument if a word has a NUL byte, or if there are more words than bubblewrap takes.
    """
    check_words(command)
    count = len(options) + len(command)
    if count > _MAX_WORDS:
        raise InvalidArgument(
            f"The container has too many arguments, environment variables and mounts: they take {count} words, and "
            f"the sandbox takes {_MAX_WORDS}. Put some of them into a ConfigMap, and mount it as files."
        )
    return _unnamed_file(encode(options))


def encode(words: Iterable[str]) -> bytes:
    """Return the words, each ended by a NUL byte. Raises InvalidArgument if a word has one itself."""
    return b"".join(_encoded(word) + b"\0" for word in words)


def check_words(words: Iterable[str]) -> None:
    """Raise InvalidArgument if a word cannot be an argument of a program."""
    for word in words:
        _encoded(word)


def check_environment(env: Iterable[tuple[str, str]]) -> None:
    """Raise InvalidArgument if a name or a value cannot be in the environment of a program."""
    for name, value in env:
        if not name or "=" in name:
            raise InvalidArgument(f"{name!r} is not a valid name of an environment variable: use letters, digits, _.")
        check_words((name, value))


def environment_options(env: Sequence[tuple[str, str]]) -> list[str]:
    """Return the options that set exactly this environment. Raises InvalidArgument.

    bubblewrap sets the variables in its own running process, too late for LD_PRELOAD and the like to affect it.
    """
    check_environment(env)
    return ["--clearenv", *(word for name, value in env for word in ("--setenv", name, value))]


def _encoded(word: str) -> bytes:
    try:
        found = word.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidArgument("A command, variable or path has characters that UTF-8 cannot encode.") from None
    if b"\0" in found:
        raise InvalidArgument(_NUL)
    return found


def _unnamed_file(content: bytes) -> int:
    """Return a memfd: a pipe holds no more than 64 KB, and other processes see the command line."""
    descriptor = os.memfd_create("skysail")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
