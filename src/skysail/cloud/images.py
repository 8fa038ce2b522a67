"""Configs of images, read from their registries: entry point, arguments, variables, user, and whether there is a shell.

Clouds that start a program need its command line. A pod may name none, because the image has one. Some clouds also need
a shell in the image.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import TypeVar

import msgspec

from skysail.base import untrusted_json
from skysail.base.names import Reason
from skysail.base.ttl_cache import Memory
from skysail.cloud import image_names
from skysail.cloud.account import RegistryCredentials
from skysail.cloud.errors import OutcomeUnknown, ProviderError, Rejected
from skysail.cloud.image_layers import InvalidLayer, LayerReader, ShellSearch
from skysail.cloud.image_manifests import Config, Descriptor, HistoryStep, Manifest, Platform, Program
from skysail.cloud.image_names import ImageName
from skysail.cloud.provider import Container
from skysail.cloud.registry_addresses import RegistryAddresses
from skysail.cloud.registry_client import RegistryClient, Repository
from skysail.cloud.registry_mirrors import RegistryMirrors

_OS, _ARCHITECTURE = "linux", "amd64"
_DEADLINE_SECONDS = 45.0
# A tag may move, so it is read again after this time.
_TAG_SECONDS = 60.0
_MAX_CONFIGS = 512
_MAX_CONCURRENT = 8
# Searches of layers have their own limit: a slow one must not delay the configs of other images.
_MAX_SEARCHES = 4
_MAX_INDEX_DEPTH = 2
_MAX_WORDS = 1000
# A shell is in the lowest layers. Where these limits are reached first, it stays unknown.
_SHELL_SECONDS = 20.0
_MAX_LAYERS_BYTES = 96 * 2**20
_MAX_UNPACKED_BYTES = 2**30
# An image whose files could not be read is tried again after this time.
_UNKNOWN_SECONDS = 600.0
_SHELLS = frozenset({"sh", "bash", "ash", "dash", "zsh"})

T = TypeVar("T")

log = logging.getLogger(__name__)


class ImageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Config of an image. `digest` is that of the manifest or index that the name refers to.

    `has_shell` is True if the image was built or starts with a shell, and None if its layers have to be read to know.
    """

    digest: str
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    user: str = ""
    working_dir: str = ""
    platform: str = f"{_OS}/{_ARCHITECTURE}"
    has_shell: bool | None = None
    layers: tuple[Descriptor, ...] = ()


class ImageReader:
    """Reads configs of images. Concurrent calls for one image share a request. Must be closed.

    `registry_mirrors` are URLs that are read in place of registries, by the registry's host.
    """

    def __init__(
        self,
        allowed_registries: tuple[str, ...] = (),
        clock: Callable[[], float] = time.monotonic,
        *,
        registry_mirrors: Mapping[str, str] | None = None,
    ) -> None:
        self._mirrors = RegistryMirrors(registry_mirrors or {})
        self._client = RegistryClient(
            RegistryAddresses(allowed_registries, self._mirrors.endpoints), registry_mirrors=self._mirrors
        )
        self._found: Memory[tuple[str, ...], ImageConfig] = Memory(clock, most=_MAX_CONFIGS)
        # Contents never change under their digest. Reached only after the registry has answered for the manifest
        # with the caller's own credentials, so nobody reads a private image through this cache.
        self._configs: Memory[str, Config] = Memory(clock, most=_MAX_CONFIGS)
        self._shells: Memory[tuple[str, ...], bool | None] = Memory(clock, most=_MAX_CONFIGS)
        self._locks: dict[tuple[str, ...], asyncio.Lock] = {}
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)
        self._searches = asyncio.Semaphore(_MAX_SEARCHES)

    async def close(self) -> None:
        await self._client.close()

    def has_mirror(self, image: str) -> bool:
        """Return whether the registry of an image has a mirror."""
        return self._mirrors.find(image_names.parse(image).registry) is not None

    async def read(self, image: str, credentials: RegistryCredentials | None = None) -> ImageConfig:
        """Return the config of an image for linux/amd64.

        Raises Rejected if the image does not exist, may not be read or is invalid; a change may help, so it is retried.
        Raises Throttled or OutcomeUnknown if the registry does not answer now.
        """
        key = _key(image, credentials)
        lock = self._locks.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                return await self._found.get_or_fetch(
                    key, lambda: self._read(image, credentials), ttl=lambda _: _TAG_SECONDS
                )
        finally:
            if not lock.locked():
                self._locks.pop(key, None)

    async def has_shell(self, image: str, credentials: RegistryCredentials | None = None) -> bool | None:
        """Return whether an image has /bin/sh, or None if its files cannot be read or are too many. Never raises."""
        try:
            async with asyncio.timeout(_SHELL_SECONDS):
                return await self._shells.get_or_fetch(
                    _key(image, credentials),
                    lambda: self._find_shell(image, credentials),
                    ttl=lambda found: _UNKNOWN_SECONDS if found is None else _TAG_SECONDS,
                )
        except TimeoutError:
            return None

    async def _find_shell(self, image: str, credentials: RegistryCredentials | None) -> bool | None:
        try:
            config = await self.read(image, credentials)
            return config.has_shell or await self._shells.get_or_fetch(
                ("digest", config.digest),
                lambda: self._search(image, credentials, config.layers),
                ttl=lambda found: _UNKNOWN_SECONDS if found is None else math.inf,
            )
        except ProviderError as error:
            log.info("files of image not read", extra={"image": image, "why": str(error)})
            return None

    async def _search(
        self, image: str, credentials: RegistryCredentials | None, layers: tuple[Descriptor, ...]
    ) -> bool | None:
        async with self._searches:
            return await self._search_layers(image, credentials, layers)

    async def _search_layers(
        self, image: str, credentials: RegistryCredentials | None, layers: tuple[Descriptor, ...]
    ) -> bool | None:
        """Read the names of all files until one is a shell. Returns None if a layer cannot be read to its end."""
        name, search, packed, unpacked = image_names.parse(image), ShellSearch(), 0, 0
        repository = self._client.repository(name, _usable(credentials, name))
        try:
            for layer in layers:
                reader = LayerReader(layer.media_type)
                async with aclosing(repository.stream(_checked_digest(image, layer.digest))) as pieces:
                    async for piece in pieces:
                        for entry in reader.feed(piece):
                            search.take(entry)
                        packed += len(piece)
                        if search.is_found:
                            return True
                        if packed > _MAX_LAYERS_BYTES or unpacked + reader.unpacked > _MAX_UNPACKED_BYTES:
                            return None
                unpacked += reader.unpacked
        except InvalidLayer as error:
            log.info("files of image not read", extra={"image": image, "why": str(error)})
            return None
        return False

    async def _read(self, image: str, credentials: RegistryCredentials | None) -> ImageConfig:
        name = image_names.parse(image)
        if not name.is_valid:
            raise _rejected(image, "its name is invalid. Write REGISTRY/REPOSITORY:TAG")
        repository = self._client.repository(name, _usable(credentials, name))
        try:
            async with self._slots, asyncio.timeout(_DEADLINE_SECONDS):
                return await self._resolve(image, name, repository)
        except TimeoutError as error:
            message = f"Image {image} cannot be read now: registry {name.registry} did not answer in time. Retried."
            raise OutcomeUnknown(message) from error

    async def _resolve(self, image: str, name: ImageName, repository: Repository) -> ImageConfig:
        reference, digest = name.reference, ""
        for _ in range(_MAX_INDEX_DEPTH + 1):
            body = await repository.manifest(reference)
            digest = digest or f"sha256:{hashlib.sha256(body).hexdigest()}"
            manifest = _decoded(image, body, Manifest)
            if manifest.config is not None:
                blob = _checked_digest(image, manifest.config.digest)
                fetch = partial(_config, image, repository, blob)
                config = await self._configs.get_or_fetch(blob, fetch, ttl=lambda _: math.inf)
                return msgspec.structs.replace(_image_config(image, digest, config), layers=manifest.layers)
            reference = _checked_digest(image, _variant(image, manifest.manifests).digest)
        raise _rejected(image, "its indexes are nested too deeply. Push it again")


def with_command(container: Container, image_config: ImageConfig) -> Container:
    """Return the container with the command line of its image, as Kubernetes combines them.

    `command` replaces ENTRYPOINT and CMD; `args` replace CMD. Raises Rejected if the result is empty.
    """
    if container.command:
        return container
    command, args = image_config.entrypoint, container.args or image_config.cmd
    if not command and not args:
        raise _rejected(container.image, "it has neither ENTRYPOINT nor CMD. Set `command`", verb="has no command")
    return msgspec.structs.replace(container, command=command or args, args=args if command else ())


def _variant(image: str, manifests: tuple[Descriptor, ...]) -> Descriptor:
    """Return the linux/amd64 variant of an index."""
    for descriptor in manifests:
        if descriptor.platform == Platform(_OS, _ARCHITECTURE):
            return descriptor
    raise _rejected(image, f"it has no variant for {_OS}/{_ARCHITECTURE}. Build one with `--platform`")


async def _config(image: str, repository: Repository, digest: str) -> Config:
    return _decoded(image, await repository.blob(digest), Config)


def _image_config(image: str, digest: str, config: Config) -> ImageConfig:
    platform = f"{config.os or _OS}/{config.architecture or _ARCHITECTURE}"
    if platform != f"{_OS}/{_ARCHITECTURE}":
        raise _rejected(image, f"it is for {platform}. Build it with `--platform {_OS}/{_ARCHITECTURE}`")
    program = config.config or Program()
    entrypoint, cmd = program.entrypoint or (), program.cmd or ()
    if len(entrypoint) + len(cmd) > _MAX_WORDS or any("\0" in word for word in (*entrypoint, *cmd)):
        raise _rejected(image, "its ENTRYPOINT or CMD is invalid. Set `command`")
    return ImageConfig(
        digest=digest,
        entrypoint=entrypoint,
        cmd=cmd,
        env=program.variables,
        user=program.user,
        working_dir=program.working_dir,
        has_shell=_has_shell(entrypoint or cmd, config.history or ()),
    )


def _has_shell(argv: tuple[str, ...], history: tuple[HistoryStep, ...]) -> bool | None:
    """Return True if the program is a shell, or if a step of the build ran one."""
    is_started = bool(argv) and argv[0].rpartition("/")[2] in _SHELLS
    is_built = any(_runs_shell(step.created_by) for step in history)
    return True if is_started or is_built else None


def _runs_shell(step: str) -> bool:
    """Return whether a build step ran /bin/sh. `#(nop)` marks a step that only writes the config."""
    return step.removeprefix("RUN ").startswith("/bin/sh -c ") and "#(nop)" not in step


def _usable(credentials: RegistryCredentials | None, name: ImageName) -> RegistryCredentials | None:
    """Return the credentials if they are those of the image's registry."""
    return credentials if credentials and credentials.registry == name.registry else None


def _checked_digest(image: str, digest: str) -> str:
    if not image_names.DIGEST.fullmatch(digest):
        raise _rejected(image, "its manifest has a digest that is not sha256. Push it again")
    return digest


def _decoded(image: str, body: bytes, kind: type[T]) -> T:
    try:
        return untrusted_json.decode(body, kind)
    except untrusted_json.InvalidJson as error:
        raise _rejected(image, "its manifest or config is invalid. Push it again, or set `command`") from error


def _key(image: str, credentials: RegistryCredentials | None) -> tuple[str, ...]:
    """Return the cache key. Other credentials are another key, because they may not read the image."""
    if credentials is None:
        return (image,)
    secret = hashlib.sha256(credentials.password.encode()).hexdigest()
    return image, credentials.registry, credentials.username, secret


def _rejected(image: str, reason: str, verb: str = "cannot be read") -> Rejected:
    return Rejected(Reason.ENTRYPOINT_UNKNOWN, f"Image {image} {verb}: {reason}.")
