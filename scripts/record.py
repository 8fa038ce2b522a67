"""Record a terminal in which the first examples run: docs/pictures/first-steps.cast (asciinema) and .svg.

The commands are those of examples/README.md. They run on a cluster of their own, which is gone afterwards.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "pictures" / "first-steps"
COMMANDS = (
    "skysail train examples/first-training",
    "skysail why first-training",
    "skysail serve examples/first-model/doubles.onnx",
    "skysail predict doubles -d '[[21.0]]'",
)
COLUMNS, ROWS = 110, 34
# Seconds of a key, of a pause before a command, and the longest that a viewer waits for output.
_KEY, _PAUSE, _MAX_WAIT = 0.03, 0.8, 1.2
_PROMPT = "\x1b[1;32m$\x1b[0m "
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
_LINE_HEIGHT, _CHARACTER = 18, 8.0
_STYLE = (
    "text{font:13px ui-monospace,Menlo,Consolas,monospace;fill:#e5e7eb;white-space:pre}"
    ".prompt{fill:#86efac;font-weight:bold}@keyframes wait{from{opacity:0}to{opacity:1}}"
    "text{animation-name:wait;animation-timing-function:steps(1,end)}"
)
_LIGHTS = ("#f87171", "#fbbf24", "#34d399")


class Event(msgspec.Struct, frozen=True):
    """Output of the terminal, with its time in seconds since the start."""

    at: float
    text: str


class Line(msgspec.Struct, frozen=True):
    """One line of the screen, and when it was complete."""

    at: float
    text: str


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="skysail-record-") as home:
        environment = {
            **os.environ,
            "SKYSAIL_HOME": home,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TERM": "xterm-256color",
        }
        try:
            _run(("skysail", "up"), environment)
            events = list(record(COMMANDS, environment))
        finally:
            _run(("skysail", "down", "--purge"), environment)
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.with_suffix(".cast").write_text(cast(events))
    TARGET.with_suffix(".svg").write_text(picture(lines(events)))
    sys.stdout.write(f"{len(events)} events are in {TARGET.relative_to(ROOT)}.cast and .svg.\n")
    return 0


def record(commands: Iterable[str], environment: dict[str, str]) -> Iterator[Event]:
    """Run each command in a terminal and yield its output. Raises CalledProcessError if one fails."""
    now = 0.0
    for command in commands:
        now += _PAUSE
        yield Event(now, _PROMPT)
        for character in command:
            now += _KEY
            yield Event(now, character)
        yield Event(now, "\r\n")
        for waited, text in _output(command, environment):
            now += min(waited, _MAX_WAIT)
            yield Event(now, text)


def cast(events: Iterable[Event]) -> str:
    """Return a recording in asciinema's format, version 2."""
    head = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "Skysail: train, why, serve, predict"}
    rows = [json.dumps(head), *(json.dumps([round(event.at, 3), "o", event.text]) for event in events)]
    return "\n".join([*rows, ""])


def lines(events: Iterable[Event]) -> list[Line]:
    """Return the lines of the screen without colours. A carriage return starts a line again."""
    found: list[Line] = []
    text, at = "", 0.0
    for event in events:
        for piece in re.split(r"(\r?\n|\r)", _CONTROL.sub("", event.text)):
            if piece.endswith("\n"):
                found.append(Line(at, text))
                text = ""
            elif piece == "\r":
                text = ""
            elif piece:
                text, at = text + piece, event.at
    return [*found, *([Line(at, text)] if text else [])]


def picture(shown: Sequence[Line]) -> str:
    """Return an SVG in which the lines appear one after the other. Without animations, all of them are there."""
    rows = [row for line in shown for row in _folded(line)]
    width, height = COLUMNS * _CHARACTER + 40, len(rows) * _LINE_HEIGHT + 62
    parts = [
        "<!-- Made by `make record`, which really runs the commands. -->",
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">',
        "<title>A terminal: skysail train, why, serve, predict</title>",
        f"<style>{_STYLE}</style>",
        f'<rect width="{width:.0f}" height="{height}" rx="10" fill="#111827"/>',
        *(f'<circle cx="{22 + 18 * place}" cy="20" r="5" fill="{fill}"/>' for place, fill in enumerate(_LIGHTS)),
    ]
    for number, line in enumerate(rows):
        kind = ' class="prompt"' if line.text.startswith("$ ") else ""
        style = f"animation-duration:{line.at:.2f}s"
        y = 52 + number * _LINE_HEIGHT
        parts.append(f'<text x="20" y="{y}"{kind} style="{style}" xml:space="preserve">{escape(line.text)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _folded(line: Line) -> Iterator[Line]:
    text = line.text or " "
    for begin in range(0, len(text), COLUMNS):
        yield Line(line.at, text[begin : begin + COLUMNS])


def _run(command: Sequence[str], environment: dict[str, str]) -> None:
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 (our own)


def _output(command: str, environment: dict[str, str]) -> Iterator[tuple[float, str]]:
    """Run a command in a pseudo-terminal. Yield each piece of output, with the seconds since the last one."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(  # noqa: S603 (our own)
        ("/bin/sh", "-c", command), cwd=ROOT, env=environment, stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    last = time.monotonic()
    while piece := _read(controller):
        now = time.monotonic()
        yield now - last, piece.decode(errors="replace")
        last = now
    os.close(controller)
    if code := process.wait():
        raise subprocess.CalledProcessError(code, command)


def _read(controller: int) -> bytes:
    """Return the next output, or nothing after the end: Linux reports the end of a pseudo-terminal as an error."""
    try:
        return os.read(controller, 65536)
    except OSError:
        return b""


if __name__ == "__main__":
    sys.exit(main())
