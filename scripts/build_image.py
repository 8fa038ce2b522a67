"""Build our images as OCI layouts, without a container engine and without a registry.

usage: python -m scripts.build_image [IMAGE...] [--out FOLDER] | IMAGE --root FOLDER | --lock

An image has Python, its libraries, certificates, time zones and our programs: no shell, no package manager, no root.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from scripts.image import debian, debian_index, layout, python_packages, sbom
from scripts.image.errors import BuildError
from scripts.image.layout import Layer
from skysail.local.control_plane.build import cache_folder

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "image" / "debian.lock"
USER = 65532
_MAX_BYTES = 200_000_000
_VERSION = "0.1.0"
_PASSWD = f"root:x:0:0:root:/root:/nonexistent\nskysail:x:{USER}:{USER}:skysail:/home/skysail:/nonexistent\n"
_GROUP = f"root:x:0:\nskysail:x:{USER}:\n"
_ENV = (
    f"PATH=/{python_packages.FOLDER}/bin:/usr/bin",
    f"PYTHONPATH=/{python_packages.FOLDER}",
    "PYTHONUNBUFFERED=1",
    "PYTHONDONTWRITEBYTECODE=1",
    "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
    "LANG=C.UTF-8",
)


class ImageSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One of our images. `has_wheel`: all of Skysail; otherwise only the programs that run in users' pods.

    `without` are packages, or parts of them, that no program in the image imports.
    """

    name: str
    tag: str
    lock: str
    entrypoint: tuple[str, ...]
    has_wheel: bool = False
    without: tuple[str, ...] = ()
    is_bounded: bool = True


IMAGES = {
    spec.name: spec
    for spec in (
        ImageSpec(
            name="skysail",
            tag=_VERSION,
            lock="requirements.lock",
            entrypoint=("skysail",),
            has_wheel=True,
            # Only the cluster on a laptop builds environments.
            without=("uv",),
        ),
        ImageSpec(
            name="skysail-fetch",
            tag="dev",
            lock="inference/fetch.lock",
            entrypoint=("python3", "-m", "skysail.runtimes.fetch"),
        ),
        ImageSpec(
            name="fastapi-onnx",
            tag="dev",
            lock="inference/fastapi-onnx.lock",
            entrypoint=("python3", "-m", "skysail.runtimes.model_server"),
            # Tools that change models, and that compile extensions.
            without=(
                *("onnxruntime/quantization", "onnxruntime/tools", "onnxruntime/transformers"),
                *("numpy/distutils", "numpy/f2py"),
            ),
        ),
        # PyTorch's wheels bring CUDA with them: several gigabytes, so this image is built only by its name.
        ImageSpec(
            name="fastapi-pytorch",
            tag="dev",
            lock="inference/fastapi-pytorch.lock",
            entrypoint=("python3", "-m", "skysail.runtimes.model_server"),
            is_bounded=False,
        ),
    )
}
DEFAULT = tuple(name for name, spec in IMAGES.items() if spec.is_bounded)


class Built(msgspec.Struct, frozen=True):
    """A built image: layout, name, size unpacked, entry points, and Debian packages that differ from the lock."""

    folder: Path
    name: str
    digest: str
    bytes: int
    entry_points: tuple[str, ...]
    changes: str


class Roots(msgspec.Struct, frozen=True):
    """Folders of the two layers of an image, and what the image has in them."""

    base: Path
    app: Path
    bom: bytes
    bytes: int
    entry_points: tuple[str, ...]
    changes: str


def build(spec: ImageSpec, out: Path, *, is_release: bool = True) -> Built:
    """Build one image as an OCI layout, and as a tar file of it. Raises BuildError.

    Only a build for tests may have newer Debian packages than the lock, where Debian no longer offers the locked ones.
    """
    epoch = source_date()
    with tempfile.TemporaryDirectory(prefix="skysail-image-") as scratch:
        roots = make_roots(spec, Path(scratch), epoch, is_release=is_release)
        name = f"localhost/{spec.name}:{spec.tag}"
        layers = (
            Layer(roots.base, "Debian packages of image/debian.lock"),
            Layer(roots.app, f"{spec.lock} and Skysail"),
        )
        place = out / spec.name
        digest = layout.write(place, layers, _config(spec), name=name, epoch=epoch)
        layout.pack(place, out / f"{spec.name}.tar", epoch)
        (out / f"{spec.name}.cdx.json").write_bytes(roots.bom)
    return Built(place, name, digest, roots.bytes, roots.entry_points, roots.changes)


def write_root(spec: ImageSpec, folder: Path) -> None:
    """Write the root of an image as one folder, for the Dockerfile. Raises BuildError."""
    with tempfile.TemporaryDirectory(prefix="skysail-image-") as scratch:
        roots = make_roots(spec, Path(scratch), source_date(), is_release=True)
        for layer in (roots.base, roots.app):
            shutil.copytree(layer, folder, symlinks=True, dirs_exist_ok=True)


def make_roots(spec: ImageSpec, scratch: Path, epoch: int, *, is_release: bool) -> Roots:
    """Make the folders of the layers. Raises BuildError."""
    locked, base, app = debian.read_lock(LOCK), scratch / "base", scratch / "app"
    packages = debian.download(locked, _debian_cache(), is_release=is_release)
    _make_base(base, packages)
    entry_points = _make_app(app, spec, scratch, epoch)
    bom = sbom.document(spec.name, _VERSION, packages, python_packages.locked_packages(ROOT / spec.lock))
    (app / "usr/share/doc/skysail").mkdir(parents=True)
    (app / "usr/share/doc/skysail/sbom.cdx.json").write_bytes(bom)
    for folder in (base, app):
        if not python_packages.compile_bytecode(folder):
            sys.stdout.write("  without bytecode: run this with Python 3.11 to have programs start sooner\n")
    size = sum(path.lstat().st_size for folder in (base, app) for path in folder.rglob("*") if path.is_file())
    if spec.is_bounded and size > _MAX_BYTES:
        raise BuildError(f"Image {spec.name} has {size:,} bytes, more than {_MAX_BYTES:,}: remove a dependency.")
    return Roots(base, app, bom, size, tuple(entry_points), debian_index.describe_changes(locked, packages))


def source_date() -> int:
    """Return the time of the last commit, so that the same source gives the same image."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return int(os.environ["SOURCE_DATE_EPOCH"])
    command = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 (git)
    return int(done.stdout.strip() or 0)


def _debian_cache() -> Path:
    return cache_folder(os.environ) / "debian"


def _make_base(root: Path, packages: list[debian_index.DebianPackage]) -> None:
    (root / "usr/bin").mkdir(parents=True)
    debian.unpack(packages, _debian_cache(), root)
    for name, content in {"passwd": _PASSWD, "group": _GROUP, "nsswitch.conf": "hosts: files dns\n"}.items():
        (root / "etc" / name).write_text(content)
    for folder in ("dev", "proc", "sys", "tmp", "run", "var/lib/skysail", "home/skysail"):
        (root / folder).mkdir(parents=True, exist_ok=True)


def _make_app(root: Path, spec: ImageSpec, scratch: Path, epoch: int) -> list[str]:
    (root / python_packages.FOLDER).mkdir(parents=True)
    if spec.has_wheel:
        wheel = python_packages.build_wheel(ROOT, scratch / "wheel", epoch)
        python_packages.install(root, ROOT / spec.lock, wheel=wheel, without=spec.without)
        return python_packages.write_entry_points(root, wheel)
    python_packages.install(root, ROOT / spec.lock, wheel=None, without=spec.without)
    # As on the node `local`: the programs that run in pods, and nothing else of Skysail.
    runtimes = root / python_packages.FOLDER / "skysail" / "runtimes"
    shutil.copytree(ROOT / "src/skysail/runtimes", runtimes, ignore=shutil.ignore_patterns("__pycache__"))
    return []


def _config(spec: ImageSpec) -> dict[str, object]:
    return {
        "User": f"{USER}:{USER}",
        "Env": list(_ENV),
        "Entrypoint": list(spec.entrypoint),
        "WorkingDir": "/home/skysail",
        "Labels": {
            "org.opencontainers.image.title": spec.name,
            "org.opencontainers.image.version": _VERSION,
            "org.opencontainers.image.licenses": "Apache-2.0",
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Build our images as OCI layouts.")
    parser.add_argument(
        "images", nargs="*", metavar="IMAGE", help=f"{', '.join(IMAGES)} [default: {', '.join(DEFAULT)}]"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "images", help="folder of the layouts")
    parser.add_argument("--lock", action="store_true", help="lock the newest Debian packages, and build nothing")
    parser.add_argument("--root", type=Path, help="write the root of one image as a folder, and no layout")
    given = parser.parse_args()
    if unknown := set(given.images) - IMAGES.keys():
        parser.error(f"unknown image {', '.join(sorted(unknown))}: choose from {', '.join(IMAGES)}")
    try:
        if given.lock:
            debian.write_lock(LOCK, _debian_cache())
            return 0
        if given.root is not None:
            (name,) = given.images or ("skysail",)
            write_root(IMAGES[name], given.root)
            return 0
        given.out.mkdir(parents=True, exist_ok=True)
        for name in given.images or DEFAULT:
            built = build(IMAGES[name], given.out)
            programs = f", programs {', '.join(built.entry_points)}" if built.entry_points else ""
            sys.stdout.write(
                f"{built.name}: {built.bytes / 1e6:.0f} MB{programs}\n  {built.folder}.tar ({built.digest})\n"
            )
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
