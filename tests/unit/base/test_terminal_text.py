"""Text as a terminal shows it."""

from __future__ import annotations

import pytest

from skysail.base.terminal_text import strip_control, tail


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("", ""),
        ("a\nb\n", "a\nb\n"),
        ("one\r\ntwo\r\n", "one\ntwo\n"),
        ("\r 1%\r 50%\r100%\nValueError: nan", "100%\nValueError: nan"),
        ("50%\r", "50%"),
    ],
)
def test_what_was_written_over_is_not_seen(text, seen):
    assert strip_control(text) == seen


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\x1b[31mred\x1b[0m\tand plain", "red\tand plain"),
        ("\x1b]0;a title\x07words", "words"),
        ("\x1b]8;;https://example.com\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;a title without an end", ""),
        ("\x1b(B\x1b[2K\x1b[1Aup", "up"),
        ("\x9b31mred\x07\x00\x7f", "red"),
        ("a\x1b", "a"),
        ("Ünï\u0441ode \N{SNOWMAN}\n", "Ünï\u0441ode \N{SNOWMAN}\n"),
    ],
)
def test_what_tells_a_terminal_how_to_show_it_is_not_seen(text, seen):
    assert strip_control(text) == seen


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("a\nb", "a\nb"),
        ("first\nlast line", "last line"),
        ("one line that is long", "that is long"),
        ("abc" * 5 + "\n", "bcabcabcabc\n"),
    ],
)
def test_of_what_is_too_long_the_end_stays_in_whole_lines(text, end):
    assert tail(text, 12) == end
