"""Mirrors of registries: servers that are read in place of a registry, as the administrator set them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec
from yarl import URL

from skysail.cloud import image_names


class Mirror(msgspec.Struct, frozen=True):
    """Mirror of one registry. `origin` is scheme, host and port; `prefix` comes before the names of repositories."""

    registry: str
    origin: str
    prefix: str = ""

    @property
    def title(self) -> str:
        """Return how messages name the mirror."""
        return f"mirror {self.origin}/{self.prefix} of registry {self.registry}"


class RegistryMirrors:
    """Mirrors by registry, from the setting `registry_mirrors`: host to `http(s)://HOST[:PORT][/PREFIX]`."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._mirrors = {mirror.registry: mirror for mirror in map(_mirror, urls, urls.values())}

    @property
    def endpoints(self) -> frozenset[tuple[str, int]]:
        """Return hosts and ports of the mirrors: exceptions of the egress policy, which the administrator chose."""
        urls = [URL(mirror.origin, encoded=True) for mirror in self._mirrors.values()]
        return frozenset((url.host or "", url.port or 0) for url in urls)

    def find(self, registry: str) -> Mirror | None:
        return self._mirrors.get(registry)


def _mirror(registry: str, url: str) -> Mirror:
    parts = urlsplit(url)
    path = parts.path.strip("/")
    return Mirror(
        image_names.canonical_registry(registry), f"{parts.scheme}://{parts.netloc}", f"{path}/" if path else ""
    )
