"""Lists of packages for an environment: from the command line, from requirements.txt, from a script."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from skysail.local.errors import Misused

# Inline metadata of a script (PEP 723): a comment block that holds TOML.
_BLOCK = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(?:^#(?:| .*)$\s)+)^# ///$")
_OPERATORS = ("<", ">", "=", "!", "~")
_PLACES = ("/", "./", "../", "file:")
_MAX_DEPTH = 8


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
    blocks = [match for match in _BLOCK.finditer(text) if match["type"] == "script"]
    if not blocks:
        return ()
    if len(blocks) > 1:
        raise Misused(f"{where} has several blocks of inline metadata: keep one.")
    lines = (line[2:] if line.startswith("# ") else line[1:] for line in blocks[0]["content"].splitlines())
    try:
        metadata = tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError as error:
        raise Misused(f"The inline metadata of {where} cannot be read: {error}.") from error
    names = metadata.get("dependencies", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Misused(f"The dependencies in the inline metadata of {where} must be a list of strings.")
    for name in names:
        check(name, f"{where}:")
    return tuple(names)


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
