"""Debian's signed index as apt knows it, and the choice of the versions that an image is built with."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from scripts.image.errors import BuildError

_MAX_SECONDS = 300
_FIELD = re.compile(r"^(Package|Version|Architecture|SHA256): (\S+)$", re.MULTILINE)
# apt drops its privileges, and then cannot write to a folder of root.
_OPTIONS = ("APT::Sandbox::User=root", "Acquire::Retries=3", "Acquire::http::Timeout=30", "Acquire::https::Timeout=30")


class DebianPackage(msgspec.Struct, frozen=True):
    name: str
    version: str
    sha256: str


class Index:
    """The index in the lists of this machine, or in a folder of ours that `update` fills."""

    def __init__(self, lists: Path | None = None) -> None:
        own = (f"Dir::State::lists={lists}", "Dir::Cache::pkgcache=", "Dir::Cache::srcpkgcache=") if lists else ()
        self._lists = lists
        self._options = [word for option in (*_OPTIONS, *own) for word in ("-o", option)]

    def update(self) -> None:
        """Download the index. Raises BuildError if apt cannot run at all.

        A source of another vendor may be out of reach: whether the index is complete shows in its offers.
        """
        if self._lists is not None:
            (self._lists / "partial").mkdir(parents=True, exist_ok=True)
        self._run("apt-get", "update", "--quiet", "-o", "Acquire::Languages=none")

    def offers(self, names: Iterable[str]) -> dict[str, list[DebianPackage]]:
        """Return the versions of each package, the newest first. Raises BuildError if apt cannot run at all."""
        return parse_offers(self._run("apt-cache", "show", *names).stdout)

    def download(self, package: DebianPackage, folder: Path) -> None:
        """Download one package into a folder. Raises BuildError."""
        with_version = f"{package.name}={package.version}"
        done = self._run("apt-get", "download", with_version, folder=folder)
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise BuildError(f"Debian package {with_version} cannot be downloaded ({reason}): check the network.")

    def _run(self, program: str, *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        if shutil.which(program) is None:
            raise BuildError(f"{program} not found: build on Debian, or use the Dockerfile.")
        command = [program, *self._options, *words]
        try:
            return subprocess.run(  # noqa: S603 (the system's own)
                command, cwd=folder, capture_output=True, text=True, check=False, timeout=_MAX_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"{program} {words[0]} took more than {_MAX_SECONDS} s: check the network.") from error


def parse_offers(text: str) -> dict[str, list[DebianPackage]]:
    """Return the packages in the output of `apt-cache show`, by name.

    A version that is installed but no longer offered has no hash there, and is left out.
    """
    found: dict[str, list[DebianPackage]] = {}
    for paragraph in text.split("\n\n"):
        fields = dict(_FIELD.findall(paragraph))
        if "SHA256" in fields and fields.get("Architecture") in {"amd64", "all"}:
            package = DebianPackage(fields["Package"], fields["Version"], fields["SHA256"])
            found.setdefault(package.name, []).append(package)
    return found


def choose(
    locked: Sequence[DebianPackage], offers: Mapping[str, Sequence[DebianPackage]], *, is_release: bool
) -> list[DebianPackage]:
    """Return the packages to build with: the locked ones, or for tests the newest where a version is gone.

    Raises BuildError if a package has another hash than its lock, or is not offered in any version.
    Raises BuildError in a release if a locked version is gone.
    """
    chosen = [_choose(package, offers.get(package.name, ())) for package in locked]
    if is_release and (changes := describe_changes(locked, chosen)):
        raise BuildError(f"Debian no longer offers locked packages ({changes}): run `make lock-image`.")
    return chosen


def describe_changes(locked: Sequence[DebianPackage], chosen: Sequence[DebianPackage]) -> str:
    """Return the packages that differ from the lock, with both versions. Returns an empty text if none does."""
    pairs = zip(locked, chosen, strict=True)
    return ", ".join(f"{old.name} {old.version} -> {new.version}" for old, new in pairs if old != new)


def _choose(package: DebianPackage, offered: Sequence[DebianPackage]) -> DebianPackage:
    if not offered:
        raise BuildError(f"apt offers no package {package.name}: check the network, and build on Debian 12.")
    same = next((offer for offer in offered if offer.version == package.version), None)
    # Debian never publishes another file under the same version.
    if same is not None and same.sha256 != package.sha256:
        raise BuildError(
            f"Debian package {package.name}={package.version} has another hash than image/debian.lock: "
            "compare both with packages.debian.org, then run `make lock-image`."
        )
    return same or offered[0]
