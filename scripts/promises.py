"""Whether every promise that people rely on has its test. Names what is wrong in `tests/promises.toml` (exit code 1).

A row has a `test` that shows it, or a `reason` why it cannot be kept, or neither as long as it is not built. The number
of rows with neither is printed, and only falls.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parent.parent
PROMISES = "tests/promises.toml"

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Promise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    seed: str
    lines: str
    text: str
    test: str = ""
    reason: str = ""


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
        if promise.test and not exists(promise.test, root):
            yield f"{promise.id} names {promise.test}, which does not exist."


def exists(node_id: str, root: Path) -> bool:
    """Whether a file defines this test. Parameters in brackets are not looked at: they exist only when collected."""
    file, _, names = node_id.partition("[")[0].partition("::")
    path = root / file
    if not names or not path.is_file():
        return False
    body = ast.parse(path.read_text()).body
    for name in names.split("::"):
        found = [node for node in body if isinstance(node, _DEFINITIONS) and node.name == name]
        if not found:
            return False
        body = found[0].body
    return True


def main() -> int:
    promises = read(ROOT / PROMISES)
    found = list(problems(promises, ROOT))
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
    sys.exit(main())
