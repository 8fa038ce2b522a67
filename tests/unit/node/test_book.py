from __future__ import annotations

from skysail.node.book import Book
from tests.unit.node.pods import pod


def test_an_image_that_cannot_be_had_is_tried_again_later_each_time_and_that_is_told():
    book, told = Book(pod(), {}, ""), []
    for now in (100.0, 200.0, 300.0):
        book.hold("main", "ErrImagePull", "No such image.", now)
        told.append((book.waiting["main"].reason, book.waiting["main"].retry_at - now))
    assert told == [("ErrImagePull", 5.0), ("ImagePullBackOff", 10.0), ("ImagePullBackOff", 20.0)]
    book.release_hold("main")
    book.hold("main", "ErrImagePull", "No such image.", 400.0)
    assert book.waiting["main"].reason == "ErrImagePull"
