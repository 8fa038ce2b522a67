"""Prints what an extra of the project requires, and nothing that the project itself does.

`uv pip compile` takes an extra only together with the project's own dependencies, which images of model servers lack.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def requirements(extra: str, project: Path = PROJECT) -> list[str]:
    """Return the requirements of an extra, with those of the extras that it names. Raises KeyError if there is none."""
    table = tomllib.loads(project.read_text())["project"]
    own = f"{table['name']}["
    found: list[str] = []
    for line in table["optional-dependencies"][extra]:
        if line.startswith(own):
            found += requirements(line.removeprefix(own).removesuffix("]"), project)
        else:
            found.append(line)
    return found


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in requirements(sys.argv[1])))
