"""Names of images: registry, repository, tag and digest, as Docker and Kubernetes read them. Pure."""

from __future__ import annotations

import re

import msgspec

DOCKER_HUB = "docker.io"
_HUB_ALIASES = frozenset({DOCKER_HUB, "index.docker.io", "registry-1.docker.io"})
_HUB_API = "registry-1.docker.io"
_HUB_NAMESPACE = "library/"
_REGISTRY = re.compile(r"([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?", re.IGNORECASE)
_REPOSITORY = re.compile(r"[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")
_TAG = re.compile(r"\w[\w.-]{0,127}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class ImageName(msgspec.Struct, frozen=True):
    """An image. `tag` is empty if only a digest is named."""

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def reference(self) -> str:
        """Return the digest, which takes precedence, or the tag."""
        return self.digest or self.tag or "latest"

    @property
    def api_host(self) -> str:
        """Return host and port of the registry's API."""
        return _HUB_API if self.registry == DOCKER_HUB else self.registry

    @property
    def is_valid(self) -> bool:
        """Return whether each part has the form that registries accept."""
        return (
            _REGISTRY.fullmatch(self.registry) is not None
            and _REPOSITORY.fullmatch(self.repository) is not None
            and (not self.tag or _TAG.fullmatch(self.tag) is not None)
            and (not self.digest or DIGEST.fullmatch(self.digest) is not None)
        )


def parse(image: str) -> ImageName:
    """Split an image name. Never fails: `is_valid` tells whether the parts can be used."""
    name, _, digest = image.partition("@")
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        registry, path = canonical_registry(first), rest
    else:
        registry, path = DOCKER_HUB, name
    repository, _, tag = path.partition(":")
    if registry == DOCKER_HUB and "/" not in repository:
        repository = _HUB_NAMESPACE + repository
    return ImageName(registry, repository, tag, digest)


def canonical_registry(host: str) -> str:
    """Return one name for Docker Hub, and other hosts unchanged."""
    return DOCKER_HUB if host in _HUB_ALIASES else host
