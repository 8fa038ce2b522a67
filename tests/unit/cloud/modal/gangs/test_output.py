"""Lines of ranks from the log of a call."""

from __future__ import annotations

from datetime import UTC, datetime

from modal.types import LogEntry

from skysail.cloud.modal.gangs.output import RankLines

MARK = "skysail-gang "
START = {rank: f'{MARK}{{"kind": "start", "rank": {rank}}}\n' for rank in range(2)}
END = {rank: f'{MARK}{{"kind": "exit", "rank": {rank}, "code": 0}}\n' for rank in range(2)}


def entry(task, message, source="stdout"):
    return LogEntry(message, datetime.fromtimestamp(1.0, UTC), source, "fc-1", ["in-1", task])


def read(lines, *entries):
    return b"".join(piece.data for each in entries for piece in lines.add(each)).decode()


def rest(lines):
    return b"".join(piece.data for piece in lines.end()).decode()


def test_rank_has_its_own_lines_only():
    lines = RankLines(1)
    assert read(lines, entry("a", START[0]), entry("b", START[1]), entry("a", "zero\n"), entry("b", "one\n")) == "one\n"


def test_lines_of_a_rank_have_their_place_in_the_stream():
    lines, entries = RankLines(1), (entry("b", START[1]), entry("b", "one\ntwo\n"), entry("b", "oh\n", "stderr"))
    found = [(piece.stream, piece.offset) for each in entries for piece in lines.add(each)]
    assert found == [("stdout", 0), ("stdout", 4), ("stderr", 0)]
    lines.restart()
    again = [(piece.data, piece.offset) for each in (*entries, entry("b", "three\n")) for piece in lines.add(each)]
    assert again == [(b"three\n", 8)]


def test_all_ranks_of_a_pod_have_their_number_in_front():
    lines = RankLines(None)
    seen = read(
        lines, entry("a", START[0]), entry("b", START[1]), entry("a", "zero\n"), entry("b", "o"), entry("b", "ne\n")
    )
    assert seen == "[0] zero\n[1] one\n"


def test_lines_before_the_rank_is_known_are_kept():
    lines = RankLines(0)
    assert read(lines, entry("a", "early\n", "stderr")) == ""
    assert read(lines, entry("a", START[0])) == "early\n"


def test_line_that_a_program_left_open_is_no_part_of_the_marker():
    lines = RankLines(0)
    assert read(lines, entry("a", START[0]), entry("a", f"open{END[0]}")) == "open"


def test_lines_after_the_end_are_those_of_the_sdk():
    lines = RankLines(0)
    read(lines, entry("a", START[0]), entry("a", END[0]))
    assert read(lines, entry("a", "Traceback\n"), entry("a", "own\n", "stderr")) == "own\n"
    assert not lines.is_complete()
    assert read(lines, entry("a", END[0], "stderr"), entry("a", "Traceback\n", "stderr")) == ""
    assert lines.is_complete()


def test_second_reading_delivers_only_what_is_new():
    lines = RankLines(0)
    first = [entry("a", START[0]), entry("a", "one\n"), entry("a", "tw")]
    assert read(lines, *first) == "one\n"
    lines.restart()
    assert read(lines, *first, entry("a", "o\nthree\n")) == "two\nthree\n"
    assert rest(lines) == ""


def test_containers_without_a_rank_are_shown_with_rank_0():
    for rank, want in ((0, "no module\n"), (1, "")):
        lines = RankLines(rank)
        read(lines, entry("x", "no module\n", "stderr"))
        assert rest(lines) == want


def test_forged_or_broken_markers_are_output():
    lines = RankLines(0)
    text = f"{MARK}{{broken\n"
    assert read(lines, entry("a", START[0]), entry("a", text)) == text


def test_line_without_an_end_is_delivered_in_parts():
    lines, part = RankLines(0), "x" * 100_000
    seen = read(lines, entry("a", START[0]), entry("a", part), entry("a", part))
    assert 0 < 2 * len(part) - len(seen) < 10_000
    assert seen + read(lines, entry("a", END[0])) == 2 * part
