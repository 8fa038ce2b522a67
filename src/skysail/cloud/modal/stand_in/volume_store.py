"""Volumes of the workspace. A volume is a persistent disk of the provider, so its files outlive sandboxes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable

import msgspec
from google.protobuf.empty_pb2 import Empty
from modal_proto import api_pb2

from skysail.cloud.modal.stand_in import ids, rules
from skysail.cloud.modal.stand_in.dispatch import Call, Handler
from skysail.cloud.modal.stand_in.errors import exists, invalid, not_found
from skysail.cloud.provider import Mount, PersistentDisk, Volume

_UNSAFE = re.compile(r"[^a-z0-9.-]")


class StoredVolume(msgspec.Struct, frozen=True, kw_only=True):
    """`disk` is the provider's name of the disk. The same volume name has the same disk after a restart."""

    id: str
    name: str
    disk: str
    created: float
    version: int


class VolumeStore:
    """`make_disk` creates the disk of this name if it does not exist; `remove_disk` deletes it with its files."""

    def __init__(self, make_disk: Callable[[str], None], remove_disk: Callable[[str], None]) -> None:
        self._make_disk = make_disk
        self._remove_disk = remove_disk
        self._volumes: dict[str, StoredVolume] = {}

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "VolumeGetOrCreate": self._get_or_create,
            "VolumeList": self._list,
            "VolumeDelete": self._delete,
            "VolumeHeartbeat": self._heartbeat,
        }

    def mounted(self, mounts: Iterable[api_pb2.VolumeMount]) -> tuple[tuple[Volume, ...], tuple[Mount, ...]]:
        """Return volumes and mounts for the provider. Raises NOT_FOUND or INVALID_ARGUMENT."""
        volumes: dict[str, Volume] = {}
        places: list[Mount] = []
        for mount in mounts:
            stored = self._find(mount.volume_id)
            if not mount.mount_path.startswith("/"):
                raise invalid(f"Volume mount path {mount.mount_path!r} must be absolute.")
            if stored.id in volumes:
                raise invalid(f"Volume {stored.name or stored.id} is mounted at more than one path.")
            volumes[stored.id] = Volume(stored.id.lower(), PersistentDisk(stored.disk))
            places.append(
                Mount(
                    volume=stored.id.lower(),
                    path=mount.mount_path,
                    sub_path=mount.sub_path.lstrip("/"),
                    read_only=mount.read_only,
                )
            )
        return tuple(volumes.values()), tuple(places)

    async def _get_or_create(
        self, request: api_pb2.VolumeGetOrCreateRequest, _: Call
    ) -> api_pb2.VolumeGetOrCreateResponse:
        name, kind = request.deployment_name, request.object_creation_type
        if name:
            rules.check_name(name, "Volume")
        stored = next((volume for volume in self._volumes.values() if name and volume.name == name), None)
        if stored is not None and kind == api_pb2.OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS:
            raise exists(f"Volume '{name}' already exists.")
        if stored is None:
            if kind == api_pb2.OBJECT_CREATION_TYPE_UNSPECIFIED:
                raise not_found(f"Volume '{name}'")
            stored = self._create(name, request.version)
        metadata = _metadata(stored)
        return api_pb2.VolumeGetOrCreateResponse(volume_id=stored.id, version=metadata.version, metadata=metadata)

    async def _list(self, request: api_pb2.VolumeListRequest, _: Call) -> api_pb2.VolumeListResponse:
        before = request.pagination.created_before or float("inf")
        named = sorted(
            (volume for volume in self._volumes.values() if volume.name and volume.created < before),
            key=lambda volume: -volume.created,
        )
        limit = request.pagination.max_objects or len(named)
        rows = [
            api_pb2.VolumeListItem(
                label=volume.name, volume_id=volume.id, created_at=volume.created, metadata=_metadata(volume)
            )
            for volume in named[:limit]
        ]
        return api_pb2.VolumeListResponse(items=rows, environment_name=request.environment_name)

    async def _delete(self, request: api_pb2.VolumeDeleteRequest, _: Call) -> Empty:
        self._remove_disk(self._find(request.volume_id).disk)
        del self._volumes[request.volume_id]
        return Empty()

    async def _heartbeat(self, request: api_pb2.VolumeHeartbeatRequest, _: Call) -> Empty:
        self._find(request.volume_id)
        return Empty()

    def _create(self, name: str, version: int) -> StoredVolume:
        volume_id = ids.identifier("vo")
        disk = "modal-" + _UNSAFE.sub("-", (name or volume_id).lower())
        self._make_disk(disk)
        stored = StoredVolume(id=volume_id, name=name, disk=disk, created=time.time(), version=version)
        self._volumes[volume_id] = stored
        return stored

    def _find(self, volume_id: str) -> StoredVolume:
        stored = self._volumes.get(volume_id)
        if stored is None:
            raise not_found(f"Volume {volume_id}")
        return stored


def _metadata(volume: StoredVolume) -> api_pb2.VolumeMetadata:
    version = api_pb2.VolumeFsVersion.Name(volume.version or api_pb2.VOLUME_FS_VERSION_V1)
    return api_pb2.VolumeMetadata(version=api_pb2.VolumeFsVersion.Value(version), name=volume.name)
