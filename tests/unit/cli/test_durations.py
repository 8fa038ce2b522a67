from __future__ import annotations

import pytest

from skysail.cli import durations


@pytest.mark.parametrize(
    ("text", "want"),
    [("30", 30.0), ("0", 0.0), ("0.5", 0.5), ("5m", 300.0), ("1h30m", 5400.0), ("1m0.5s", 60.5), ("250ms", 0.25)],
)
def test_seconds_number_or_duration_is_parsed(text, want):
    assert durations.seconds(text) == want


@pytest.mark.parametrize("text", ["", " ", "soon", "-5", "5 minutes", "30 5m", "305m5", "1d", "٣"])
def test_seconds_other_text_is_rejected_with_an_example(text):
    with pytest.raises(durations.InvalidDuration, match="write seconds such as 30, or a time such as 5m"):
        durations.seconds(text)
