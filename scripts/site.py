"""Build the documentation site into build/site, or fail with each link that leads nowhere.

The pages are the documents of the repository as they are. They are staged with the tree that they have there, together
with the files that they link to, so a link works on the site as it does in the repository.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "zensical.toml"
SOURCE = ROOT / "build" / "site-source"
# Listed on a page of their own instead of in the navigation.
_UNLISTED = ("docs/adr/",)
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def pages(root: Path) -> list[str]:
    """Return the documents that become pages."""
    found = (
        *root.glob("*.md"),
        *root.glob("docs/**/*.md"),
        *root.glob("examples/**/*.md"),
        *root.glob("inference/*.md"),
    )
    return sorted(str(path.relative_to(root)) for path in found)


def problems(root: Path, config: dict[str, Any]) -> list[str]:
    """Return mistakes that the generator does not find, each with its fix."""
    found = []
    for page in pages(root):
        for target in _links(root, page):
            linked = root / target
            if not linked.exists():
                found.append(f"{page} links to {target}, which does not exist.")
            elif linked.is_dir():
                found.append(f"{page} links to the folder {target}: link to a file in it.")
    listed = set(_listed(config["project"]["nav"]))
    wanted = {page for page in pages(root) if not page.startswith(_UNLISTED)}
    found += [f"{page} is in no part of the navigation: add it to zensical.toml." for page in sorted(wanted - listed)]
    found += [f"zensical.toml lists {page}, which is not a page." for page in sorted(listed - set(pages(root)))]
    return found


def stage(root: Path, folder: Path) -> None:
    """Copy the pages, and the files that they link to, into `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    for page in pages(root):
        for name in (page, *_links(root, page)):
            copy = folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, copy)


def main() -> int:
    found = problems(ROOT, tomllib.loads(CONFIG.read_text()))
    for problem in found:
        sys.stderr.write(f"{problem}\n")
    if found:
        return 1
    stage(ROOT, SOURCE)
    # Colours would split every letter of a message in a log.
    environment = {**os.environ, "NO_COLOR": "1"}
    command = [
        str(Path(sys.executable).parent / "zensical"),
        "build",
        "--strict",
        "--clean",
        "--config-file",
        str(CONFIG),
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 (our own)
    if done.returncode:
        sys.stderr.write(re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr).partition("Traceback")[0])
        return 1
    sys.stdout.write(f"{len(pages(ROOT))} pages are in build/site: open build/site/index.html.\n")
    return 0


def _links(root: Path, page: str) -> Iterator[str]:
    """Yield the files of the repository that a page links to, by their paths from the root."""
    for target in _LINK.findall(_CODE.sub("", (root / page).read_text())):
        yield os.path.normpath(Path(page).parent / target)


def _listed(entries: Iterable[Any]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else (entry,):
            if isinstance(value, str):
                yield value
            else:
                yield from _listed(value)


if __name__ == "__main__":
    sys.exit(main())
