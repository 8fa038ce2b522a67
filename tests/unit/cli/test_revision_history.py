"""Words of `skysail rollback` about the revisions of a model."""

from __future__ import annotations

import msgspec
import pytest

from skysail.cli import revision_history
from skysail.kinds.serving.api.types import Failure
from tests.unit.kinds.serving.builders import entry, model, shown


@pytest.mark.parametrize("outcome", ["", "failed"])
def test_undo_says_that_the_revision_of_the_spec_failed_before(outcome):
    of = model()
    failed = msgspec.structs.replace(entry(of, number=2), outcome=outcome)
    served = msgspec.structs.replace(entry(model(version="v0"), number=1), outcome="served")
    said = revision_history.failed_before(of, [failed, served])
    assert "Revision 2 (" in said
    assert "failed or was stopped before it was served." in said
    known = shown(of, failure=Failure(step="Deploy", reason="CrashLoop", message="It crashes.", revision=failed.hash))
    assert "served: It crashes. `skysail why" in revision_history.failed_before(known, [failed, served])


def test_undo_says_nothing_of_a_revision_that_was_served_or_is_new():
    of = model()
    served = msgspec.structs.replace(entry(of, number=2), outcome="served")
    assert revision_history.failed_before(of, [served]) == ""
    assert revision_history.failed_before(of, [entry(model(version="v0"), number=1)]) == ""
