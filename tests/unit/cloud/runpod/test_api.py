"""Values of RunPod's answers: a time that nothing can be calculated with counts as none."""

from __future__ import annotations

import pytest

from skysail.cloud.runpod import api


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-99-99T99:99:99Z",
        "0001-01-01T00:00:00+23:59",
        "1969-12-31T23:59:59Z",
        "2100-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999-23:59",
    ],
)
def test_seconds_of_no_time_of_the_service_is_none(text):
    assert api.seconds(text) is None


@pytest.mark.parametrize("text", ["1970-01-01T00:00:00.000000Z", "2026-06-01T12:00:00.250000Z"])
def test_seconds_of_a_timestamp_convert_back(text):
    found = api.seconds(text)
    assert found is not None
    assert api.timestamp(found) == text


def test_seconds_of_nanoseconds_are_those_of_microseconds():
    assert api.seconds("2026-06-01T12:00:00.123456789Z") == api.seconds("2026-06-01T12:00:00.123456Z")
