"""Debian packages of the images: locked by version and SHA-256, downloaded by apt, unpacked without dpkg.

No package brings a shell or a package manager, and no script of a package is run.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scripts.image.debian_index import DebianPackage, Index, choose
from scripts.image.errors import BuildError
from skysail.local.control_plane.file_lock import exclusive

# Python without the modules for terminals and databases that no program of ours uses.
PACKAGES = (
    *("ca-certificates", "libbz2-1.0", "libc6", "libcrypt1", "libexpat1", "libffi8", "libgcc-s1", "liblzma5"),
    *("libpython3.11-minimal", "libpython3.11-stdlib", "libsqlite3-0", "libssl3", "libstdc++6", "libuuid1"),
    *("python3.11-minimal", "tzdata", "zlib1g"),
)
PYTHON = "python3.11"
# Scripts of packages, documents except for licences, and what only programs for developers read.
_UNWANTED = re.compile(
    r"usr/sbin/|etc/ca-certificates|usr/share/(man|locale|lintian|doc-base|binfmts|apport|python|applications|pixmaps)/"
    r"|usr/lib/x86_64-linux-gnu/gconv/|usr/share/doc/[^/]+/(?!copyright)"
    r"|usr/lib/python3\.11/(ensurepip|idlelib|lib2to3|tkinter|turtle|pydoc_data|test|unittest/test|distutils/tests)"
    r"|usr/lib/python3\.11/(sitecustomize\.py|LICENSE)|etc/python3|usr/share/zoneinfo/(posix|right)/"
)
_CERTIFICATES = "usr/share/ca-certificates"
_BUNDLE = "etc/ssl/certs/ca-certificates.crt"
_MAGIC = b"!<arch>\n"
_HEADER = 60


def read_lock(file: Path) -> list[DebianPackage]:
    rows = [line.split() for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return [DebianPackage(*row) for row in rows]


def write_lock(file: Path, cache: Path) -> None:
    """Write the versions and hashes that apt, which checks Debian's signatures, offers now. Raises BuildError."""
    with _own_index(cache) as index:
        offers = index.offers(PACKAGES)
    lines = ["# Debian packages of our images: name, version, SHA-256. Written by `make lock-image`."]
    for name in PACKAGES:
        if name not in offers:
            raise BuildError(f"apt offers no package {name}: check the network, and lock on Debian 12.")
        newest = offers[name][0]
        lines.append(f"{name} {newest.version} {newest.sha256}")
    file.write_text("\n".join(lines) + "\n")


def download(locked: list[DebianPackage], cache: Path, *, is_release: bool) -> list[DebianPackage]:
    """Download the packages that the cache lacks, and return those to build with. Raises BuildError.

    A release has exactly the locked versions. Tests take the newest of the signed index where a locked one is gone.
    """
    missing = [package for package in locked if not _file(package, cache).exists()]
    if not missing:
        return locked
    try:
        _download(missing, cache, Index(), is_release=True)
    except BuildError:
        # The lists of this machine may be missing or old: only a new index shows what Debian offers now.
        with _own_index(cache) as index:
            found = {package.name: package for package in _download(missing, cache, index, is_release=is_release)}
        return [found.get(package.name, package) for package in locked]
    return locked


@contextlib.contextmanager
def _own_index(cache: Path) -> Iterator[Index]:
    """Yield the index of now, in lists of our own, which one build at a time may use."""
    cache.mkdir(parents=True, exist_ok=True)
    with exclusive(cache / "lists.lock", waiting=lambda: None):
        index = Index(cache / "lists")
        index.update()
        yield index


def _download(packages: list[DebianPackage], cache: Path, index: Index, *, is_release: bool) -> list[DebianPackage]:
    chosen = choose(packages, index.offers(package.name for package in packages), is_release=is_release)
    cache.mkdir(parents=True, exist_ok=True)
    for package in chosen:
        if not _file(package, cache).exists():
            _fetch(package, cache, index)
    return chosen


def _fetch(package: DebianPackage, cache: Path, index: Index) -> None:
    with tempfile.TemporaryDirectory(prefix="download-", dir=cache) as draft:
        index.download(package, Path(draft))
        (found,) = Path(draft).iterdir()
        if hashlib.sha256(found.read_bytes()).hexdigest() != package.sha256:
            raise BuildError(
                f"Debian package {package.name}={package.version} does not match its hash: download it again."
            )
        found.replace(_file(package, cache))


def _file(package: DebianPackage, cache: Path) -> Path:
    return cache / f"{package.sha256}.deb"


def unpack(packages: list[DebianPackage], cache: Path, root: Path) -> None:
    """Unpack downloaded packages, and write the bundle of certificates. Raises BuildError if one was changed."""
    for package in packages:
        file = _file(package, cache)
        if hashlib.sha256(file.read_bytes()).hexdigest() != package.sha256:
            raise BuildError(f"{file} was changed: delete it.")
        _unpack(file, root)
    names = sorted((root / _CERTIFICATES).rglob("*.crt"))
    (root / _BUNDLE).parent.mkdir(parents=True, exist_ok=True)
    (root / _BUNDLE).write_bytes(b"".join(name.read_bytes() for name in names))
    shutil.rmtree(root / _CERTIFICATES)
    (root / "usr/bin/python3").symlink_to(PYTHON)


def _unpack(file: Path, root: Path) -> None:
    """Unpack the files of a package. A package is an ar archive with a tar file in it."""
    with tarfile.open(fileobj=io.BytesIO(_data(file)), mode="r:*") as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            if name and not member.isdir() and not _UNWANTED.match(name):
                tar.extract(member, root, filter="tar")


def _data(file: Path) -> bytes:
    content = file.read_bytes()
    if not content.startswith(_MAGIC):
        raise BuildError(f"{file} is no Debian package: delete it.")
    at = len(_MAGIC)
    while at < len(content):
        header = content[at : at + _HEADER]
        name, size = header[:16].decode().strip(), int(header[48:58])
        at += _HEADER
        if name.startswith("data.tar"):
            return content[at : at + size]
        at += size + size % 2
    raise BuildError(f"{file} has no files: delete it.")
