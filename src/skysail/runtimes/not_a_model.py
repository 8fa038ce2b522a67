"""Detection of files that are no model: a web page, an error of an object store, or a Git LFS pointer.

Only the first bytes are read. No server accepts any of these, so model formats do not matter here.
"""

from __future__ import annotations

import re
from pathlib import Path

_HEAD = 512
_EXCERPT_LENGTH = 40
_KINDS = (
    (
        re.compile(rb"\s*(<!--.*?-->\s*)?<(!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL),
        "a web page, perhaps a login page: use the URL of its download button, with credentials if needed",
    ),
    (
        re.compile(rb"\s*(<\?xml[^>]*>\s*)?<(Error|ListBucketResult)\b"),
        "an answer of an object store, often an error, and not a file: open the URL in a browser and correct it",
    ),
    (
        re.compile(rb"version https://git-lfs\."),
        "a Git LFS pointer and not the file: run `git lfs pull` before the upload, or use the URL of the file",
    ),
)


def describe(file: Path) -> str | None:
    """Return a sentence with the fix if the file is no model, or None if it may be one."""
    start = head(file)
    what = next((what for form, what in _KINDS if form.match(start)), None)
    return f"{file.name} begins with {excerpt(start)}, which is {what}." if what else None


def head(file: Path) -> bytes:
    with file.open("rb") as content:
        return content.read(_HEAD)


def excerpt(start: bytes) -> str:
    """Format the first line for a message, or the first bytes if it is not text."""
    line = start.strip().split(b"\n", 1)[0][:_EXCERPT_LENGTH].strip()
    text = line.decode("ascii", errors="replace")
    return text if text.isprintable() and "\ufffd" not in text else f"the bytes {start[:8].hex(' ')}"
