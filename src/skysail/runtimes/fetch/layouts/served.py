"""For Skysail's own server: a folder in which it finds one model, of a format that it loads."""

from __future__ import annotations

from pathlib import Path

from skysail.runtimes import formats
from skysail.runtimes.fetch.errors import WrongContent
from skysail.runtimes.fetch.layouts import plain


def lay_out(tree: Path, into: Path, name: str) -> None:
    plain.as_folder(tree, into, name)
    try:
        found = formats.find(into)
    except formats.NoModel as error:
        raise WrongContent("UnsupportedFormat", str(error)) from error
    if found.lack:
        raise WrongContent("UnsupportedFormat", found.lack)
