from __future__ import annotations

import pytest

from skysail.cli import status
from skysail.local.control import HullStatus
from skysail.local.supervisor import UnitStatus


@pytest.mark.parametrize(
    ("is_ready", "states", "want"),
    [
        (False, ("running", "running"), "starting"),
        (True, ("running", "running"), "ready"),
        (True, ("running", "waiting"), "not running: b"),
        (True, ("stopped", "waiting"), "not running: a, b"),
    ],
)
def test_the_header_says_whether_one_can_work_with_it(is_ready, states, want):
    units = tuple(UnitStatus(name=name, state=state) for name, state in zip("ab", states, strict=True))
    shown = HullStatus(
        is_ready=is_ready, pid=1, started=0.0, url="", with_operator=True, with_audit=False, steps=(), units=units
    )
    assert status._state(shown) == want
