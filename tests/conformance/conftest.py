from __future__ import annotations

import signal

import pytest

pytest.register_assert_rewrite("tests.conformance.provider", "tests.conformance.talk")
pytest.register_assert_rewrite("tests.conformance.instances", "tests.conformance.customer")


@pytest.fixture(autouse=True, scope="session")
def _heed_hang_ups() -> None:
    """As a hull does: who runs the tests by `nohup` would make all their programs deaf to them."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
