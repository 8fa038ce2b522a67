"""Write the digests of base images into the Dockerfiles, where a registry can be reached.

usage: python -m scripts.pin_images [DOCKERFILE...]

An image is named by a line `FROM IMAGE` or `ARG NAME=IMAGE:TAG`. A digest that is there already is replaced by the one
of the tag today.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from skysail.cloud.errors import ProviderError
from skysail.cloud.images import ImageReader

ROOT = Path(__file__).resolve().parent.parent
FILES = (ROOT / "Dockerfile", ROOT / "inference" / "Dockerfile")
_IMAGE = re.compile(
    r"^(?P<line>FROM |ARG [A-Z]+=)(?P<image>[a-z0-9./:_-]+:[\w.-]+)(@sha256:[0-9a-f]{64})?", re.MULTILINE
)


def images(text: str) -> list[str]:
    """Return the images that a Dockerfile names with a tag."""
    return [found["image"] for found in _IMAGE.finditer(text)]


def pinned(text: str, digests: dict[str, str]) -> str:
    """Return the Dockerfile with these digests."""
    return _IMAGE.sub(lambda found: f"{found['line']}{found['image']}@{digests[found['image']]}", text)


async def pin(files: list[Path], allowed_registries: tuple[str, ...] = ()) -> None:
    """Pin all images of these files. Writes nothing if one of them cannot be read. Raises ProviderError."""
    reader = ImageReader(allowed_registries)
    try:
        names = {image for file in files for image in images(file.read_text())}
        digests = {image: (await reader.read(image)).digest for image in sorted(names)}
    finally:
        await reader.close()
    for file in files:
        file.write_text(pinned(file.read_text(), digests))


def main(words: list[str]) -> int:
    try:
        asyncio.run(pin([Path(word) for word in words] or list(FILES)))
    except ProviderError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
