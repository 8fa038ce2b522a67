from __future__ import annotations

from typing import Any

import pytest

from skysail.base import untrusted_json as ours
from skysail.runtimes.fetch import untrusted_json as of_pods


@pytest.mark.parametrize("hearsay", [ours, of_pods], ids=["ours", "of pods"])
@pytest.mark.parametrize(
    ("written", "why"),
    [
        (b"<html>", "JSON is malformed"),
        (b"5", "Expected `str`, got `int`"),
        ("[" * 100_000, "nested too deeply"),
        (b'"\xff"', "not UTF-8"),
        ("\udcff", "not UTF-8"),
    ],
)
def test_whatever_is_written_is_read_or_unreadable(hearsay: Any, written, why):
    with pytest.raises(hearsay.InvalidJson, match=why):
        hearsay.decode(written, list[Any] if written[:1] == "[" else str)
    assert hearsay.decode('"text"', str) == "text"
