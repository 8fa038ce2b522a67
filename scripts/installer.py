"""`make build-installer` and `make deploy`: dist/install.yaml with the image IMG."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

INSTALLER = Path(__file__).resolve().parent.parent / "dist" / "install.yaml"
_IMAGE = re.compile(r"^(\s+image: ).*$", re.MULTILINE)


def with_image(text: str, image: str) -> str:
    """Return the manifests with another image of the operator; unchanged without one."""
    return _IMAGE.sub(lambda found: f"{found[1]}{image}", text) if image else text


def main() -> int:
    text = with_image(INSTALLER.read_text(), os.environ.get("IMG", ""))
    if "--write" in sys.argv[1:]:
        INSTALLER.write_text(text)
        sys.stdout.write("dist/install.yaml is written: apply it with `kubectl apply -f dist/install.yaml`.\n")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
