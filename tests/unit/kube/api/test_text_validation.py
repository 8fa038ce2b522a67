"""NUL bytes in a spec, told by the path of the field."""

from __future__ import annotations

import pytest

from skysail.kube.api.text_validation import nul_errors


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        ("good\n\x01", []),
        ({"a": [1, None, True, {"b": "x"}]}, []),
        ("\0", ["spec"]),
        ({"a": "x\0y"}, ["spec.a"]),
        ({"a\0b": "x"}, ["spec"]),
        ({"a\0b": "\0"}, ["spec", "spec.a\\0b"]),
        ({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "\0"}]}, ["spec.env[1].value"]),
        ({"command": ("sh", "\0", "\0")}, ["spec.command[1]", "spec.command[2]"]),
    ],
)
def test_each_text_with_a_nul_is_told_by_its_path(value, paths):
    found = list(nul_errors("spec", value))
    assert [sentence.split(" has a NUL byte")[0] for sentence in found] == paths
    assert not any("\0" in sentence for sentence in found)
