"""Lists of packages for an environment: from the command line, from requirements.txt, from a script."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from skysail.local.errors import Misused

# Inline metadata of a script (PEP 723): a comment block that holds TOML.
_BLOCK = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(?:^#(?:| .*)$\s)+)^# ///$")
_OPERATORS = ("<", ">", "=", "!", "~")
_PLACES = ("/", "./", "../", "file:")
_MAX_DEPTH = 8
_PYTHON_CLAUSE = re.compile(
    r"\s*(?P<operator>~=|==|!=|<=|>=|<|>)\s*(?P<version>[0-9]{1,9}(?:\.[0-9]{1,9}){0,2})(?P<any>\.\*)?\s*"
)
_VERSION_PARTS = 3


def split(groups: Iterable[str]) -> tuple[str, ...]:
    """Split lists such as `torch>=2,<3,numpy`. Raises Misused for a word that uv would read as an option."""
    names: list[str] = []
    for group in groups:
        for part in (part.strip() for part in group.split(",")):
            if part.startswith(_OPERATORS) and names:
                names[-1] += f",{part}"
            elif part:
                names.append(part)
    for name in names:
        check(name, "--with")
    return tuple(names)


def check(name: str, where: str) -> None:
    """Raise Misused if this is no package that can be installed from an index."""
    if name.startswith("-") or not name.isprintable():
        raise Misused(
            f"{where} {name!r} is not a package. Set options of uv by its variables, such as UV_DEFAULT_INDEX."
        )
    if name.startswith(_PLACES):
        raise Misused(f"{where} {name!r} is a path: environments take packages from an index only.")


def from_file(path: Path, depth: int = 0) -> tuple[str, ...]:
    """Read a requirements file, with the files that it includes by `-r`. Raises Misused with the line."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Misused(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    found: list[str] = []
    for number, line in _lines(text):
        where = f"{path}:{number}:"
        if included := re.fullmatch(r"(?:-r|--requirement)[ =]+(\S+)", line):
            if depth == _MAX_DEPTH:
                raise Misused(f"{where} files include each other: remove the -r line.")
            found += from_file(path.parent / included[1], depth + 1)
        elif line.startswith("--hash") or " --hash" in line:
            # The environment has hashes of its own.
            found.append(line.partition(" --hash")[0].strip())
        else:
            check(line, where)
            found.append(line)
    return tuple(dict.fromkeys(name for name in found if name))


def from_script(text: str, where: str) -> tuple[str, ...]:
    """Read the dependencies in the inline metadata of a script. Empty without metadata. Raises Misused."""
    names = _metadata(text, where).get("dependencies", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Misused(f"The dependencies in the inline metadata of {where} must be a list of strings.")
    for name in names:
        check(name, f"{where}:")
    return tuple(names)


def check_python(text: str, where: str, python: str) -> None:
    """Raise Misused if the inline metadata of a script require another Python than this version."""
    required = _metadata(text, where).get("requires-python", "")
    if required == "":
        return
    clauses = [_PYTHON_CLAUSE.fullmatch(part) for part in str(required).split(",")]
    if not isinstance(required, str) or None in clauses:
        raise Misused(f"requires-python of {where} is {required!r}: write versions such as '>=3.11' or '>=3.11,<3.14'.")
    numbers = _numbers(python)
    if not all(_admits(clause, numbers) for clause in clauses if clause is not None):
        raise Misused(
            f"{where} requires Python {required}, but its environment has Python {python}: change requires-python, or "
            "add an image with `skysail image add --python` and name it with --image."
        )


def _admits(clause: re.Match[str], python: tuple[int, ...]) -> bool:
    """Return whether a clause such as `>=3.11` or `==3.12.*` admits this Python."""
    operator, parts = clause["operator"], _numbers(clause["version"])
    version = (*parts, 0, 0)[:_VERSION_PARTS]
    match operator:
        case "~=":
            return python >= version and python[: len(parts) - 1] == parts[:-1]
        case "==" | "!=":
            is_equal = python[: len(parts)] == parts if clause["any"] else python == version
            return is_equal == (operator == "==")
        case "<" | "<=":
            return python < version or (operator == "<=" and python == version)
        case _:
            return python > version or (operator == ">=" and python == version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _metadata(text: str, where: str) -> dict[str, Any]:
    """Return the inline metadata of a script. Empty without metadata. Raises Misused."""
    blocks = [match for match in _BLOCK.finditer(text) if match["type"] == "script"]
    if not blocks:
        return {}
    if len(blocks) > 1:
        raise Misused(f"{where} has several blocks of inline metadata: keep one.")
    lines = (line[2:] if line.startswith("# ") else line[1:] for line in blocks[0]["content"].splitlines())
    try:
        return tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError as error:
        raise Misused(f"The inline metadata of {where} cannot be read: {error}.") from error


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers, joined at backslashes, without comments and empty lines."""
    pending, first = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        first = first if pending else number
        if raw.endswith("\\"):
            pending += raw[:-1] + " "
            continue
        line = re.sub(r"(^|\s)#.*$", "", pending + raw).strip()
        pending = ""
        if line:
            yield first, line
