from __future__ import annotations

from skysail.cloud.provider import Ended, RunId
from skysail.local.provider.run_journal import RunJournal

RUN = RunId("u-1", "main", 3)
END = Ended(code=37, reason="Error", message="words", started=1.0, ended=2.0)


def test_an_end_is_known_to_the_next_process(tmp_path):
    first = RunJournal(tmp_path / "journal")
    assert first.past(now=0.0) == {}
    first.begin(RUN)
    first.end(RUN, END)
    assert RunJournal(tmp_path / "journal").past(now=9.0) == {RUN: END}


def test_a_run_without_an_end_was_lost_once_and_for_all(tmp_path):
    RunJournal(tmp_path).begin(RUN)
    later = 4_000_000_000.0
    lost = RunJournal(tmp_path).past(now=later)
    assert (lost[RUN].code, lost[RUN].reason, lost[RUN].ended) == (137, "Lost", later)
    assert RunJournal(tmp_path).past(now=later + 100) == lost


def test_half_an_end_is_none(tmp_path):
    RunJournal(tmp_path).end(RUN, END)
    (file,) = tmp_path.glob("*/*")
    file.write_bytes(file.read_bytes()[:20])
    assert RunJournal(tmp_path).past(now=0.0)[RUN].reason == "Lost"


def test_what_ends_with_the_process_is_lost_and_not_forgotten(tmp_path):
    journal = RunJournal(tmp_path)
    journal.begin(RUN)
    journal.close()
    journal.end(RUN, END)
    journal.forget(RUN.pod)
    assert RunJournal(tmp_path).past(now=0.0)[RUN].reason == "Lost"


def test_what_nobody_asks_for_again_leaves_nothing(tmp_path):
    journal = RunJournal(tmp_path)
    for pod in ("u-1", "u-2"):
        journal.end(RunId(pod, "main", 0), END)
    journal.forget("u-1")
    journal.begin(RUN)
    journal.withdraw(RUN)
    assert RunJournal(tmp_path).past(now=0.0) == {RunId("u-2", "main", 0): END}


def test_the_run_before_is_all_that_is_kept_of_a_long_story(tmp_path):
    journal = RunJournal(tmp_path)
    for number in range(5):
        journal.end(RunId("u-1", "main", number), END)
    assert {run.number for run in journal.past(now=0.0)} == {3, 4}
