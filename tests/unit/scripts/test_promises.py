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


ON_DEMAND = """
import pytest
@pytest.mark.on_demand
def test_marked(): ...
@pytest.mark.parametrize("a", [1])
def test_plain(a): ...
"""


@pytest.mark.parametrize(
    ("ran", "want"),
    [
        ({"test_plain": "passed"}, []),
        ({"test_plain[1]": "passed", "test_plain[2]": "passed"}, []),
        ({}, ["000-a names tests/test_things.py::test_plain, which did not run."]),
        ({"test_plainer": "passed"}, ["000-a names tests/test_things.py::test_plain, which did not run."]),
        (
            {"test_plain[1]": "passed", "test_plain[2]": "skipped"},
            ["000-a names tests/test_things.py::test_plain, which was skipped."],
        ),
        ({"test_plain": "failed"}, ["000-a names tests/test_things.py::test_plain, which failed."]),
    ],
)
def test_promise_is_shown_only_by_a_test_that_ran_and_passed(root, ran, want):
    rows = [promise(test="tests/test_things.py::test_plain")]
    named = {f"tests/test_things.py::{name}": outcome for name, outcome in ran.items()}
    assert list(promises.not_shown(rows, named, root)) == want


def test_promise_test_on_demand_need_not_run_but_must_not_fail(root):
    (root / "tests" / "test_more.py").write_text(ON_DEMAND)
    rows = [promise(test="tests/test_things.py::test_plain", also=("tests/test_more.py::test_marked",))]
    ran = {"tests/test_things.py::test_plain": "passed"}
    assert list(promises.not_shown(rows, ran, root)) == []
    failed = {**ran, "tests/test_more.py::test_marked": "failed"}
    assert list(promises.not_shown(rows, failed, root)) == [
        "000-a names tests/test_more.py::test_marked, which failed."
    ]
    assert not promises.is_on_demand("tests/test_more.py::test_plain", root)
    (root / "tests" / "test_more.py").write_text(f"import pytest\npytestmark = pytest.mark.on_demand\n{TESTS}")
    assert promises.is_on_demand("tests/test_more.py::TestGroup::test_inside", root)


MAKE = """
test-some: build ## some
\tpytest -m "not on_demand" tests

test-all: build ## all
\tpytest -q tests/test_more.py

test-rest: build
\tpytest tests/rest
"""


@pytest.mark.parametrize(
    ("test", "target", "want"),
    [
        ("test_marked", "test-all", []),
        ("test_marked", "", ["000-a names {test}, which CI does not run: name the make target that does."]),
        ("test_marked", "test-some", ["000-a names make test-some, which does not run {test}."]),
        ("test_marked", "test-rest", ["000-a names make test-rest, which does not run {test}."]),
        ("test_marked", "test-none", ["000-a names make test-none, which does not run {test}."]),
        ("test_plain", "test-all", ["000-a names make test-all, but CI runs all of its tests: remove the target."]),
    ],
)
def test_problems_test_on_demand_needs_a_target_that_runs_it(root, test, target, want):
    (root / "tests" / "test_more.py").write_text(ON_DEMAND)
    (root / "Makefile").write_text(MAKE)
    name = f"tests/test_more.py::{test}"
    row = promise(test="tests/test_things.py::test_plain", also=(name,), target=target)
    assert list(promises.problems([row], root)) == [line.format(test=name) for line in want]


def test_problems_first_test_of_a_row_must_run_in_ci(root):
    (root / "tests" / "test_more.py").write_text(ON_DEMAND)
    (root / "Makefile").write_text(MAKE)
    plain, marked = "tests/test_more.py::test_plain", "tests/test_more.py::test_marked"
    assert list(promises.problems([promise(test=plain, also=(marked,), target="test-all")], root)) == []
    assert list(promises.problems([promise(test=marked, also=(plain,), target="test-all")], root)) == [
        f"000-a names {marked} first, which CI does not run: name a test before it that CI runs."
    ]


def test_left_out_names_rows_whose_test_on_demand_did_not_run(root):
    (root / "tests" / "test_more.py").write_text(ON_DEMAND)
    plain, marked = "tests/test_more.py::test_plain", "tests/test_more.py::test_marked"
    rows = [promise(test=plain, also=(marked,), target="test-all"), promise(id="000-b", test=plain)]
    assert promises.left_out(rows, {}, root) == {"test-all": ["000-a"]}
    assert promises.left_out(rows, {marked: "passed"}, root) == {}


def test_outcomes_of_a_rerun_replace_those_before(tmp_path):
    (tmp_path / "1.json").write_text('{"a": "failed", "b": "passed"}')
    (tmp_path / "2.json").write_text('{"a": "passed", "b": "skipped", "c": "skipped"}')
    assert promises.outcomes(tmp_path) == {"a": "passed", "b": "passed", "c": "skipped"}


def test_a_misspelt_field_is_refused(tmp_path):
    path = tmp_path / "promises.toml"
    path.write_text('[[promise]]\nid = "000-a"\nseed = "000"\nlines = "1"\ntext = "It works."\ntests = "x"\n')
    with pytest.raises(msgspec.ValidationError, match="tests"):
        promises.read(path)


def test_every_promise_of_the_project_is_in_order():
    assert list(promises.problems(promises.read(promises.ROOT / promises.PROMISES), promises.ROOT)) == []
