"""Words for bubblewrap: one word in is one word out, and a NUL byte never gets through."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.local.bubblewrap import arguments
from skysail.local.bubblewrap.arguments import InvalidArgument

_OPTIONS = (
    "--ro-bind",
    "--",
    "--args",
    "--bind / /host",
    "-",
    "--setenv",
    "--cap-add=ALL",
    "@file",
    "%s",
    "$(id)",
    "`id`",
)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_WORDS = st.lists(
    st.one_of(_TEXT, st.sampled_from(_OPTIONS), st.just("\n\r\t\x01\x1b[0m\x7f"), st.just("x" * 1_000_000)), max_size=20
)


@given(_WORDS)
def test_one_word_in_is_one_word_out(words: list[str]) -> None:
    if any("\0" in word for word in words):
        with pytest.raises(InvalidArgument, match="NUL"):
            arguments.encode(words)
        return
    assert arguments.encode(words).decode().split("\0") == [*words, ""]


@given(_TEXT, _TEXT, st.integers(0, 2))
def test_a_nul_is_refused_wherever_it_is(before: str, after: str, place: int) -> None:
    words = ["--setenv", "NAME", "value"]
    words[place] = f"{before}\0{after}"
    with pytest.raises(InvalidArgument, match="NUL"):
        arguments.encode(words)
    with pytest.raises(InvalidArgument, match="NUL"):
        arguments.check_words(words)


def test_the_file_holds_the_options_from_its_start() -> None:
    descriptor = arguments.open_file(["--dir", "/ä"], ["true"])
    try:
        assert os.read(descriptor, 100) == "--dir\0/ä\0".encode()
    finally:
        os.close(descriptor)


def test_a_command_with_a_nul_gets_no_file() -> None:
    with pytest.raises(InvalidArgument, match="NUL"):
        arguments.open_file(["--dir", "/a"], ["sh", "-c", "x\0y"])


@pytest.mark.parametrize(("options", "command"), [(8_901, 0), (0, 8_901), (5_000, 5_000)])
def test_too_many_words_are_a_clear_error(options: int, command: int) -> None:
    with pytest.raises(InvalidArgument, match=rf"too many .* {options + command} words"):
        arguments.open_file(["x"] * options, ["x"] * command)


@pytest.mark.parametrize("name", ["", "=", "a=b", "=a", "a\0b", "\0"])
def test_a_name_that_no_environment_can_hold_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument):
        arguments.environment_options([(name, "value")])


@pytest.mark.parametrize("name", ["a.b-c", "a b", "ÄÖ", "LD_PRELOAD", "--setenv", "a\nb"])
def test_other_names_pass_unchanged(name: str) -> None:
    assert arguments.environment_options([(name, "=v\n")]) == ["--clearenv", "--setenv", name, "=v\n"]


def test_what_utf_8_cannot_encode_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="UTF-8"):
        arguments.encode(["\ud800"])


def test_a_path_of_the_machine_that_is_not_utf_8_keeps_its_bytes() -> None:
    assert arguments.encode([os.fsdecode(b"/caf\xe9")]) == b"/caf\xe9\0"
