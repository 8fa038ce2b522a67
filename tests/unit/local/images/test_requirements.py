"""Packages as lines of a file for uv: one package is one line, and never an option."""

from __future__ import annotations

import pytest

from skysail.local.errors import BuildFailed
from skysail.local.images.builder import _requirements


def test_one_package_is_one_line():
    assert _requirements(("numpy", "uvicorn>=0.54,<0.55", "jax[cpu]")).splitlines() == [
        "numpy",
        "uvicorn>=0.54,<0.55",
        "jax[cpu]",
    ]


@pytest.mark.parametrize(
    "name", ["-r x", " --index-url=x", "six\n--index-url=x", "six\r-r x", "a\0b", "#", "six\x85-r"]
)
def test_what_uv_would_read_as_something_else_is_refused(name):
    with pytest.raises(BuildFailed, match="is not the name of a package"):
        _requirements(("numpy", name))
