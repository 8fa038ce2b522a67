from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.conformance.provider", "tests.conformance.provider_harness")
pytest.register_assert_rewrite("tests.conformance.instances", "tests.conformance.account_harness")
