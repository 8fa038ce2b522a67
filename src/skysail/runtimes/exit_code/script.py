"""Builds the wrapper's script, and reads the lines with which it reports."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_TEXT = (Path(__file__).parent / "wrapper.sh").read_text()
_EXIT = re.compile(r"skysail-exit ([0-9a-f]{1,64}) ([0-9]{1,3}) (exited|deadline|restarted) ?([0-9a-f]*)")
_START = "skysail-start "
# Strip comments and indentation: the whole request of a launch has a limited size.
_BODY = "\n".join(line.strip() for line in _TEXT.splitlines() if line.strip() and not line.lstrip().startswith("#"))


class WrappedFile(NamedTuple):
    """A file that the wrapper writes before the program starts."""

    path: str
    content: bytes
    mode: int


class WrapperOptions(NamedTuple):
    """Options of one run. Times are in seconds.

    `lifetime`: the program is ended after it. `hold`: the ended container deletes its pod after it, through `api`,
    whose private CA is `ca`. `late_hold`: the same for a program that reached its lifetime. `folders` and `files` are
    created before the program starts, and so are `links`: folders, and the paths under which they appear.
    """

    nonce: str
    lifetime: float
    grace: float
    hold: float
    late_hold: float
    api: str
    ca: str = ""
    working_dir: str = ""
    message_path: str = ""
    folders: tuple[str, ...] = ()
    files: tuple[WrappedFile, ...] = ()
    links: tuple[tuple[str, str], ...] = ()


class ReportedExit(NamedTuple):
    """Exit of a program, as the wrapper reports it."""

    code: int
    reason: str
    message: str


def script(options: WrapperOptions) -> str:
    """Return the script for `sh -c`. The arguments after it are a name and the program with its arguments."""
    values = {
        "nonce": options.nonce,
        "lifetime": _whole(options.lifetime),
        "grace": _whole(options.grace),
        "hold": _whole(options.hold),
        "late_hold": _whole(options.late_hold),
        "api": options.api,
        "ca": options.ca,
        "message_path": options.message_path,
        "unusable": "",
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    lines += [f"mkdir -p {shlex.quote(folder)}" for folder in options.folders]
    lines += _writes(options.files)
    lines += [_link(folder, path) for folder, path in options.links]
    if options.working_dir:
        folder = shlex.quote(options.working_dir)
        lines.append(f"mkdir -p {folder} 2>/dev/null; cd {folder} || unusable={folder}")
    return "\n".join((*lines, _BODY))


def reported_exit(line: str, nonce: str) -> ReportedExit | None:
    """Return the exit that a line of output reports for this run, or None."""
    match = _EXIT.fullmatch(line.strip())
    if match is None or match[1] != nonce:
        return None
    message = bytes.fromhex(match[4]) if len(match[4]) % 2 == 0 else b""
    return ReportedExit(min(int(match[2]), 255), match[3], message.decode(errors="replace"))


def reports_start(line: str, nonce: str) -> bool:
    """Return whether a line of output reports that the program of this run was started."""
    return line.strip() == f"{_START}{nonce}"


def _whole(seconds: float) -> str:
    return str(max(1, math.ceil(seconds)))


def _link(folder: str, path: str) -> str:
    target, name, parent = shlex.quote(folder), shlex.quote(path), shlex.quote(str(Path(path).parent))
    return f"mkdir -p {target} {parent}; rmdir {name} 2>/dev/null; ln -sfn {target} {name}"


def _writes(files: Iterable[WrappedFile]) -> Iterable[str]:
    for file in files:
        path = shlex.quote(file.path)
        folder = shlex.quote(str(Path(file.path).parent))
        yield f"mkdir -p {folder}; printf {shlex.quote(_escaped(file.content))} > {path}; chmod {file.mode:o} {path}"


def _escaped(content: bytes) -> str:
    """Return the content as a format of printf: printable characters as they are, all others as octal numbers.

    The first byte is always a number: a shell takes a format that begins with a dash for an option.
    """
    return "".join(f"\\{byte:03o}" if index == 0 else _escape(byte) for index, byte in enumerate(content))


def _escape(byte: int) -> str:
    char = chr(byte)
    return char if char.isascii() and char.isprintable() and char not in "\\%" else f"\\{byte:03o}"
