"""What came in place of a model: a web page, an error of a store, a pointer of Git LFS. Told by its first bytes.

Nothing here knows the formats of models: none of these is a model to any server.
"""

from __future__ import annotations

import re
from pathlib import Path

_HEAD = 512
_SHOWN = 40
_KINDS = (
    (
        re.compile(rb"\s*(<!--.*?-->\s*)?<(!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL),
        "a web page, perhaps a login page; use the address that its download button leads to, with credentials if any",
    ),
    (
        re.compile(rb"\s*(<\?xml[^>]*>\s*)?<(Error|ListBucketResult)\b"),
        "what a store answers instead of a file, often an error; look at the address in a browser, and correct it",
    ),
    (
        re.compile(rb"version https://git-lfs\."),
        "a pointer of Git LFS and not the file; run `git lfs pull` before the upload, or use an address of the file",
    ),
)


def told(file: Path) -> str | None:
    """The sentence about it; None where it may be a model."""
    start = head(file)
    what = next((what for form, what in _KINDS if form.match(start)), None)
    return f"{file.name} begins with {shown(start)}: that is {what}." if what else None


def head(file: Path) -> bytes:
    with file.open("rb") as content:
        return content.read(_HEAD)


def shown(start: bytes) -> str:
    """As it may stand in a sentence: its first line, or its first bytes if it is no text."""
    line = start.strip().split(b"\n", 1)[0][:_SHOWN].strip()
    text = line.decode("ascii", errors="replace")
    return text if text.isprintable() and "\ufffd" not in text else f"the bytes {start[:8].hex(' ')}"
