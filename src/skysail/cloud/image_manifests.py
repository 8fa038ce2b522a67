"""Manifests and configs of images, as the OCI image format and Docker write them."""

from __future__ import annotations

import msgspec


class Platform(msgspec.Struct, frozen=True):
    os: str = ""
    architecture: str = ""


class Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    """Reference to a manifest, config or layer by its digest."""

    digest: str
    size: int = 0
    media_type: str = ""
    annotations: dict[str, str] | None = None
    platform: Platform | None = None


class Manifest(msgspec.Struct, frozen=True):
    """Manifest (with `config`) or index (with `manifests`)."""

    config: Descriptor | None = None
    layers: tuple[Descriptor, ...] = ()
    manifests: tuple[Descriptor, ...] = ()


class HistoryStep(msgspec.Struct, frozen=True):
    created_by: str = ""


class Program(msgspec.Struct, frozen=True, rename="pascal"):
    """Program of an image, with its variables, user and working directory."""

    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    env: tuple[str, ...] | None = None
    user: str = ""
    working_dir: str = ""

    @property
    def variables(self) -> tuple[tuple[str, str], ...]:
        rows = (row.partition("=") for row in self.env or ())
        return tuple((name, value) for name, _, value in rows)


class RootFs(msgspec.Struct, frozen=True):
    """Digests of the uncompressed layers."""

    diff_ids: tuple[str, ...] = ()


class Config(msgspec.Struct, frozen=True):
    os: str = ""
    architecture: str = ""
    config: Program | None = None
    rootfs: RootFs = RootFs()
    history: tuple[HistoryStep, ...] | None = None
