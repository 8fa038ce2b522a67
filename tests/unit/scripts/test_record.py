"""The recorded terminal."""

from __future__ import annotations

import json
import os
import subprocess
import xml.etree.ElementTree as ET

import pytest

from scripts import record
from scripts.record import Event, Line
from tests.support.documents import commands


def test_commands_are_those_of_the_examples():
    examples = [command for command, _ in commands("examples/README.md")]
    assert [command for command in record.COMMANDS if command not in examples] == []


def test_record_runs_a_command_in_a_terminal_of_fixed_size():
    command = "test -t 1 && stty size"
    text = "".join(event.text for event in record.record([command], dict(os.environ)))
    assert text.endswith(f"{command}\r\n{record.ROWS} {record.COLUMNS}\r\n")


def test_record_failed_command_fails():
    with pytest.raises(subprocess.CalledProcessError):
        list(record.record(["exit 3"], dict(os.environ)))


def test_lines_carriage_returns_and_colours_leave_what_a_screen_shows():
    events = [Event(1.0, "\x1b[32mone\x1b[0m\r\n10 %"), Event(2.0, "\r\x1b[2K20 %"), Event(3.0, "\r\n")]
    assert record.lines(events) == [Line(1.0, "one"), Line(2.0, "20 %")]


def test_cast_is_version_2_with_times_in_order():
    head, *rows = [json.loads(row) for row in record.cast([Event(0.5, "a"), Event(1.25, "b")]).splitlines()]
    assert head["version"] == 2
    assert rows == [[0.5, "o", "a"], [1.25, "o", "b"]]


def test_picture_escapes_and_folds_lines():
    picture = record.picture([Line(1.0, "$ <b>"), Line(2.0, "x" * (record.COLUMNS + 1))])
    shown = [element.text for element in ET.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert shown == ["$ <b>", "x" * record.COLUMNS, "x"]


def test_committed_recording_shows_every_command_and_the_answer_of_the_model():
    text = record.TARGET.with_suffix(".cast").read_text()
    shown = record.lines(Event(at, words) for at, _, words in map(json.loads, text.splitlines()[1:]))
    words = [line.text for line in shown]
    assert [f"$ {command}" for command in record.COMMANDS if f"$ {command}" not in words] == []
    assert words[-1] == '{"predictions":[[42.0]]}'
    assert record.picture(shown) == record.TARGET.with_suffix(".svg").read_text()
