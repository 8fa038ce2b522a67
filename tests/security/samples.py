"""CI tries every n-th row of the long tables; `make test-security-all` tries all rows."""

from __future__ import annotations

import pytest

ON_DEMAND = pytest.mark.on_demand


def sampled(step: int) -> pytest.MarkDecorator:
    """Give a test the argument `step`: in CI this number, on demand 1. The test takes `rows[::step]`."""
    return pytest.mark.parametrize(
        "step", [pytest.param(step, id="sample"), pytest.param(1, id="all", marks=ON_DEMAND)]
    )
