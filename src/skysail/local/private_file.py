"""Files that hold secrets: readable for the owner only, and never half written."""

from __future__ import annotations

from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Replace the file at once: who reads it finds the old content or the new one."""
    half = path.with_name(f".{path.name}.new")
    half.touch(mode=0o600)
    half.write_bytes(content)
    half.replace(path)
