from __future__ import annotations

from skysail.node.pod_state import Book
from skysail.node.sync.planner import plan
from tests.unit.node.pods import ended, pod, run, running, snapshot


def test_an_image_that_cannot_be_had_is_tried_again_later_each_time_and_that_is_told():
    book, told = Book(pod(), {}, "", began=0.0), []
    for now in (100.0, 200.0, 300.0):
        book.hold("main", "ErrImagePull", "No such image.", now)
        told.append((book.waiting["main"].reason, book.waiting["main"].retry_at - now))
    assert told == [("ErrImagePull", 5.0), ("ImagePullBackOff", 10.0), ("ImagePullBackOff", 20.0)]
    book.release_hold("main")
    book.hold("main", "ErrImagePull", "No such image.", 400.0)
    assert book.waiting["main"].reason == "ErrImagePull"


def test_a_crash_loop_does_not_fill_the_memory_and_keeps_its_pace():
    of, ends = pod(restartPolicy="Always"), {run("main", number): ended(1, ago=1.0) for number in range(30)}
    book = Book(of, {run("main", 3): running(), run("other", 0): ended(0)}, "", began=0.0)
    for known, end in ends.items():
        if known.number != 3:
            book.ended(known, end)
    kept = [("main", number) for number in (3, *range(22, 30))]
    assert sorted((known.container, known.number) for known in book.runs) == [*kept, ("other", 0)]
    del book.runs[run("main", 3)]
    assert plan(snapshot(of, book.runs)).look_again == plan(snapshot(of, ends)).look_again == 299.0
    book.ended(run("main", 30), ended(1, lasted=700.0))
    book.ended(run("main", 31), ended(1))
    book.ended(run("main", 32), ended(1))
    assert plan(snapshot(of, book.runs)).look_again == 10.0
