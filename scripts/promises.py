"""Whether every promise that people rely on has its test. Names what is wrong in `tests/promises.toml` (exit code 1).

A row has a `test` that shows it, further tests in `also`, or a `reason` why it cannot be kept, or none of them as long
as it is not built. The number of rows with none is printed, and only falls.

The first test of a row always runs in CI. Further tests may have the mark `on_demand`: CI does not run them, and their
row names the make target that does.

With `--ran`, after the test stages: every named test must have passed, and none may have been skipped. Tests that only
an on-demand target runs are listed with their target if they did not run.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parent.parent
PROMISES = "tests/promises.toml"
MAKEFILE = "Makefile"

# Written by tests/conftest.py.
OUTCOMES = ROOT / "build" / "outcomes"

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_ON_DEMAND = "pytest.mark.on_demand"
_WORDS = {"failed": "failed", "skipped": "was skipped"}


class Promise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    seed: str
    lines: str
    text: str
    test: str = ""
    also: tuple[str, ...] = ()
    target: str = ""
    reason: str = ""

    @property
    def tests(self) -> tuple[str, ...]:
        return (self.test, *self.also) if self.test else ()


def read(path: Path) -> list[Promise]:
    rows: dict[str, list[Any]] = tomllib.loads(path.read_text())
    return msgspec.convert(rows["promise"], list[Promise])


def problems(promises: Iterable[Promise], root: Path) -> Iterator[str]:
    seen: set[str] = set()
    for promise in promises:
        if promise.id in seen:
            yield f"{promise.id} is there twice."
        seen.add(promise.id)
        if not promise.id.startswith(f"{promise.seed}-"):
            yield f"{promise.id} does not begin with its seed, {promise.seed}."
        if promise.test and promise.reason:
            yield f"{promise.id} has a test and a reason why it cannot have one: keep one of them."
        if promise.also and not promise.test:
            yield f"{promise.id} has further tests and no first one: name it as its test."
        for test in promise.tests:
            if not exists(test, root):
                yield f"{promise.id} names {test}, which does not exist."
        yield from _problems_of_target(promise, root)


def _problems_of_target(promise: Promise, root: Path) -> Iterator[str]:
    tests = on_demand(promise, root)
    if promise.test in tests:
        yield f"{promise.id} names {promise.test} first, which CI does not run: name a test before it that CI runs."
    if promise.target and not tests:
        yield f"{promise.id} names make {promise.target}, but CI runs all of its tests: remove the target."
    for test in tests:
        if not promise.target:
            yield f"{promise.id} names {test}, which CI does not run: name the make target that does."
        elif not runs(promise.target, test, root):
            yield f"{promise.id} names make {promise.target}, which does not run {test}."


def on_demand(promise: Promise, root: Path) -> list[str]:
    """Return the tests of a promise that CI does not run."""
    return [test for test in promise.tests if exists(test, root) and is_on_demand(test, root)]


def runs(target: str, test: str, root: Path) -> bool:
    """Return whether a make target runs the tests on demand of a file: it names the file, or a folder above it."""
    recipe = re.search(rf"^{re.escape(target)}:.*\n((?:\t.*\n)+)", (root / MAKEFILE).read_text(), re.MULTILINE)
    if recipe is None or "not on_demand" in recipe[1]:
        return False
    file = Path(test.partition("::")[0])
    return any(str(path) in recipe[1].split() for path in (file, *file.parents))


def exists(node_id: str, root: Path) -> bool:
    """Whether a file defines this test. Parameters in brackets are not looked at: they exist only when collected."""
    return bool(_definitions(node_id, root))


def is_on_demand(node_id: str, root: Path) -> bool:
    """Whether only an on-demand target runs this test: a mark of the test, of its class or of its file says so."""
    tree = ast.parse((root / node_id.partition("::")[0]).read_text())
    marks = [ast.unparse(node.value) for node in tree.body if isinstance(node, ast.Assign) and _is_mark(node)]
    for definition in _definitions(node_id, root):
        marks += [ast.unparse(decorator) for decorator in definition.decorator_list]
    return any(mark == _ON_DEMAND for mark in marks)


def _is_mark(assignment: ast.Assign) -> bool:
    return ast.unparse(assignment.targets[0]) == "pytestmark"


def _definitions(node_id: str, root: Path) -> list[_Definition]:
    """Return the definitions that lead to the test: its classes, then itself. Returns none if the test is not there."""
    file, _, names = node_id.partition("[")[0].partition("::")
    path = root / file
    if not names or not path.is_file():
        return []
    body, way = ast.parse(path.read_text()).body, []
    for name in names.split("::"):
        found = [node for node in body if isinstance(node, _Definition) and node.name == name]
        if not found:
            return []
        way.append(found[0])
        body = found[0].body
    return way


def outcomes(folder: Path) -> dict[str, str]:
    """Return the last outcome of each test that ran, by its id. A rerun comes after the run that it repeats.

    A test that one stage ran and another one skipped ran.
    """
    found: dict[str, str] = {}
    for file in sorted(folder.glob("*.json")):
        for name, outcome in msgspec.json.decode(file.read_bytes(), type=dict[str, str]).items():
            if outcome != "skipped" or name not in found:
                found[name] = outcome
    return found


def not_shown(promises: Iterable[Promise], ran: Mapping[str, str], root: Path) -> Iterator[str]:
    """Yield what the test stages did not show. Tests on demand need not have run."""
    for promise in promises:
        for test in promise.tests:
            shown = [outcome for name, outcome in ran.items() if _is_case(name, test)]
            if not shown and not is_on_demand(test, root):
                yield f"{promise.id} names {test}, which did not run."
            for outcome in sorted({outcome for outcome in shown if outcome != "passed"}):
                yield f"{promise.id} names {test}, which {_WORDS[outcome]}."


def _is_case(name: str, test: str) -> bool:
    """Return whether a test that ran is the named one, or one of its parameters."""
    return name == test or ("[" not in test and name.partition("[")[0] == test)


def left_out(promises: Iterable[Promise], ran: Mapping[str, str], root: Path) -> dict[str, list[str]]:
    """Return the promises with a test on demand that did not run, by the make target that runs it."""
    found: dict[str, list[str]] = {}
    for promise in promises:
        if any(not any(_is_case(name, test) for name in ran) for test in on_demand(promise, root)):
            found.setdefault(promise.target, []).append(promise.id)
    return found


def _describe(promises: Sequence[Promise], ran: Mapping[str, str]) -> Iterator[str]:
    tests = {test for promise in promises for test in promise.tests}
    shown = sum(any(_is_case(name, test) for name in ran) for test in tests)
    yield f"{len(tests)} tests show promises: {shown} ran, {len(tests) - shown} did not."
    for target, ids in sorted(left_out(promises, ran, ROOT).items()):
        yield f"Left to `make {target}`: {', '.join(ids)}."


def main(arguments: Sequence[str]) -> int:
    promises = read(ROOT / PROMISES)
    found = list(problems(promises, ROOT))
    if "--ran" in arguments:
        ran = outcomes(OUTCOMES)
        found += not_shown(promises, ran, ROOT)
        sys.stdout.write("".join(f"{line}\n" for line in _describe(promises, ran)))
    for problem in found:
        sys.stderr.write(f"{PROMISES}: {problem}\n")
    shown = sum(bool(promise.test) for promise in promises)
    refused = sum(bool(promise.reason) for promise in promises)
    sys.stdout.write(
        f"{len(promises)} promises: {shown} shown by a test, {refused} refused with a reason, "
        f"{len(promises) - shown - refused} to come.\n"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
