"""A promise without a real test behind it is found out."""

from __future__ import annotations

import gc

import msgspec
import pytest

from scripts import promises
from scripts.promises import Promise

TESTS = """
def test_plain(): ...
async def test_async(): ...
class TestGroup:
    def test_inside(self): ...
"""


@pytest.fixture(autouse=True)
def _collected() -> None:
    """Collect garbage now: Python 3.11 fails in `ast.parse` if a finalizer prints a traceback meanwhile."""
    gc.collect()


@pytest.fixture
def root(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_things.py").write_text(TESTS)
    return tmp_path


@pytest.mark.parametrize(
    ("node_id", "want"),
    [
        ("tests/test_things.py::test_plain", True),
        ("tests/test_things.py::test_plain[a::b]", True),
        ("tests/test_things.py::test_async", True),
        ("tests/test_things.py::TestGroup::test_inside", True),
        ("tests/test_things.py::test_inside", False),
        ("tests/test_things.py::test_missing", False),
        ("tests/test_things.py", False),
        ("tests/test_missing.py::test_plain", False),
    ],
)
def test_a_named_test_exists_or_not(root, node_id, want):
    assert promises.exists(node_id, root) is want


def promise(**change):
    return Promise(**{"id": "000-a", "seed": "000", "lines": "1", "text": "It works.", **change})


@pytest.mark.parametrize(
    ("rows", "want"),
    [
        ([promise()], []),
        ([promise(test="tests/test_things.py::test_plain")], []),
        ([promise(), promise()], ["000-a is there twice."]),
        ([promise(seed="001")], ["000-a does not begin with its seed, 001."]),
        (
            [promise(test="tests/test_things.py::test_missing")],
            ["000-a names tests/test_things.py::test_missing, which does not exist."],
        ),
        (
            [promise(test="tests/test_things.py::test_plain", reason="Impossible.")],
            ["000-a has a test and a reason why it cannot have one: keep one of them."],
        ),
    ],
)
def test_what_is_wrong_with_a_row_is_named(root, rows, want):
    assert list(promises.problems(rows, root)) == want


def test_a_misspelt_field_is_refused(tmp_path):
    path = tmp_path / "promises.toml"
    path.write_text('[[promise]]\nid = "000-a"\nseed = "000"\nlines = "1"\ntext = "It works."\ntests = "x"\n')
    with pytest.raises(msgspec.ValidationError, match="tests"):
        promises.read(path)


def test_every_promise_of_the_project_is_in_order():
    assert list(promises.problems(promises.read(promises.ROOT / promises.PROMISES), promises.ROOT)) == []
