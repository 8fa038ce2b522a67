"""Marker lines are bounded: a program that forges them costs no memory."""

from __future__ import annotations

import itertools

from skysail.cloud.modal.gangs import markers
from skysail.cloud.modal.gangs.markers import Marker, MarkerSet

LINE = 'skysail-gang {"kind": "exit", "rank": 1, "code": 3%s}'


def mark(kind="exit", rank=0, task="ta-0", at=1.0, code=0):
    return Marker(kind=kind, rank=rank, task=task, at=at, code=code)


def test_long_line_is_no_marker():
    assert markers.parse(LINE % "", "ta-1", 1.0) == mark(rank=1, task="ta-1", code=3)
    assert markers.parse(LINE % (" " * 2000), "ta-1", 1.0) is None


def test_entry_with_many_lines_is_read_in_part():
    entry = "\n".join([LINE % ""] * 50_000)
    assert 0 < len(list(markers.of_entry(entry, "ta-1", 1.0))) <= 1000


def test_repeated_markers_are_kept_once():
    found = MarkerSet()
    found.add((mark("start", at=float(at)) for at in range(10_000)), size=2)
    found.add((mark(at=float(at), code=at % 256) for at in range(10_000)), size=2)
    assert found.sorted() == (mark("start", at=0.0), mark(at=9999.0, code=9999 % 256))


def test_number_of_markers_is_bounded_by_the_size_of_the_gang():
    found = MarkerSet()
    ranks, tasks = range(50), range(50)
    found.add((mark(rank=rank, task=f"ta-{task}") for rank, task in itertools.product(ranks, tasks)), size=2)
    assert {marker.rank for marker in found.sorted()} <= {0, 1}
    assert len(found.sorted()) <= 24
