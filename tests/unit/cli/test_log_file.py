from __future__ import annotations

import pytest

from skysail.cli.log_file import LogFileFollower


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "unit.log"
    path.write_bytes(b"old\n")
    return path


@pytest.fixture
def follower(log):
    follower = LogFileFollower(log)
    yield follower
    follower.close()


def append(path, words: bytes) -> None:
    with path.open("ab") as file:
        file.write(words)


def test_what_is_new_is_told_once(log, follower):
    assert list(follower.lines()) == []
    append(log, b"one\ntwo\n")
    assert list(follower.lines()) == ["one", "two"]
    assert list(follower.lines()) == []


def test_a_line_and_a_letter_that_are_not_whole_wait(log, follower):
    append(log, b"caf\xc3")
    assert list(follower.lines()) == []
    append(log, b"\xa9\n")
    assert list(follower.lines()) == ["caf\N{LATIN SMALL LETTER E WITH ACUTE}"]


def test_rotation_loses_no_line(log, follower):
    append(log, b"last of the old\n")
    log.rename(log.with_suffix(".log.1"))
    assert list(follower.lines()) == ["last of the old"]
    append(log, b"first of the new\n")
    assert list(follower.lines()) == ["first of the new"]


def test_a_log_that_began_later_is_told_from_its_start(log):
    follower = LogFileFollower(log, from_start=True)
    assert list(follower.lines()) == ["old"]
    follower.close()
