"""Create a PersistentVolume for every PVC of the class `standard`, and delete it after its PVC.

A volume is a folder of the cluster's home, named like its PersistentVolume. The folder is created at the first mount.
It outlives pods, agents and restarts of the local cluster.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from skysail.base.names import PROVISIONER_NAME, Annotation
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import (
    CLUSTER_ROLE_BINDING,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    STORAGE_CLASS,
    Resource,
)
from skysail.kube.cache.cache import Cache
from skysail.kube.cache.reflector import Reflector
from skysail.kube.client.client import Client
from skysail.kube.client.errors import AlreadyExists, Conflict, KubeError, NotFound
from skysail.local.addresses import NODE
from skysail.local.control_plane.pki import VOLUME_PROVISIONER
from skysail.local.files import remove_tree

CLASS = "standard"
_RETRY_SECONDS = 5.0

log = logging.getLogger(__name__)

Manifest = dict[str, Any]
MANIFESTS: tuple[tuple[Resource, Manifest], ...] = (
    (
        STORAGE_CLASS,
        {
            "apiVersion": STORAGE_CLASS.api_version,
            "kind": STORAGE_CLASS.kind,
            "metadata": {
                "name": CLASS,
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            "provisioner": PROVISIONER_NAME,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": "Immediate",
        },
    ),
    (
        CLUSTER_ROLE_BINDING,
        {
            "apiVersion": CLUSTER_ROLE_BINDING.api_version,
            "kind": CLUSTER_ROLE_BINDING.kind,
            "metadata": {"name": "skysail-disks"},
            "roleRef": {
                "apiGroup": CLUSTER_ROLE_BINDING.group,
                "kind": "ClusterRole",
                "name": "system:persistent-volume-provisioner",
            },
            "subjects": [{"apiGroup": CLUSTER_ROLE_BINDING.group, "kind": "User", "name": VOLUME_PROVISIONER.name}],
        },
    ),
)


class PvcSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    storage_class_name: str | None = None
    volume_name: str = ""
    access_modes: tuple[str, ...] = ()
    volume_mode: str = "Filesystem"
    resources: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)


class PersistentVolumeClaim(Object, frozen=True, gc=False):
    spec: PvcSpec


class VolumeSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    persistent_volume_reclaim_policy: str = "Retain"


class VolumeStatus(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""


class Volume(Object, frozen=True, gc=False):
    spec: VolumeSpec = VolumeSpec()
    status: VolumeStatus = VolumeStatus()


class VolumeProvisioner:
    """Provisions volumes. One per cluster. Every pass checks all objects: a laptop has few volumes."""

    def __init__(self, client: Client, folder: Path, rng: random.Random) -> None:
        self._client = client
        self._folder = folder
        self._rng = rng
        self._changed = asyncio.Event()
        self._pvcs: Cache[PersistentVolumeClaim] = Cache(PERSISTENT_VOLUME_CLAIM, PersistentVolumeClaim)
        self._volumes: Cache[Volume] = Cache(PERSISTENT_VOLUME, Volume)

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for cache in (self._pvcs, self._volumes):
                cache.subscribe(lambda _old, _new: self._changed.set())
                tasks.create_task(Reflector[Any](self._client, cache, rng=self._rng).run())
                await cache.synced.wait()
            while True:
                self._changed.clear()
                if not await self._pass():
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                await self._changed.wait()

    async def _pass(self) -> bool:
        try:
            for pvc in unbound_pvcs(self._pvcs.all(), {volume.metadata.name for volume in self._volumes.all()}):
                self._volumes.record_write(
                    await self._client.create(PERSISTENT_VOLUME, manifest(pvc, self._folder), Volume)
                )
            for volume in released_volumes(self._volumes.all()):
                await self._remove(volume)
        except (AlreadyExists, Conflict, NotFound) as error:
            log.debug("volume changed concurrently, retrying", extra={"why": str(error)})
        except (KubeError, OSError) as error:
            log.warning("provisioning volumes failed, retrying", extra={"why": str(error)})
        else:
            return True
        return False

    async def _remove(self, volume: Volume) -> None:
        """Delete the data before the PersistentVolume, so that an interrupted removal is repeated."""
        folder = self._folder / volume.metadata.name
        if folder.exists():
            await asyncio.to_thread(remove_tree, folder)
        await self._client.delete(PERSISTENT_VOLUME, volume, Volume)


def unbound_pvcs(pvcs: Iterable[PersistentVolumeClaim], volumes: set[str]) -> list[PersistentVolumeClaim]:
    """Return the PVCs of our class that have no volume yet."""
    return [
        pvc
        for pvc in pvcs
        if pvc.spec.storage_class_name == CLASS
        and not pvc.spec.volume_name
        and not pvc.metadata.is_deleting
        and pvc.spec.volume_mode == "Filesystem"
        and _name(pvc) not in volumes
    ]


def released_volumes(volumes: Iterable[Volume]) -> list[Volume]:
    """Return our volumes whose PVC is deleted and whose reclaim policy is Delete."""
    return [
        volume
        for volume in volumes
        if (volume.metadata.annotations or {}).get(Annotation.PROVISIONED_BY) == PROVISIONER_NAME
        and volume.status.phase == "Released"
        and volume.spec.persistent_volume_reclaim_policy == "Delete"
        and not volume.metadata.is_deleting
    ]


def manifest(pvc: PersistentVolumeClaim, folder: Path) -> Manifest:
    """Return a PersistentVolume named after the UID of its PVC, so that creating it twice makes one volume."""
    name, metadata = _name(pvc), pvc.metadata
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
    return {
        "apiVersion": PERSISTENT_VOLUME.api_version,
        "kind": PERSISTENT_VOLUME.kind,
        "metadata": {"name": name, "annotations": {Annotation.PROVISIONED_BY.value: PROVISIONER_NAME}},
        "spec": {
            "storageClassName": CLASS,
            "persistentVolumeReclaimPolicy": "Delete",
            "accessModes": list(pvc.spec.access_modes),
            "capacity": {"storage": pvc.spec.resources.get("requests", {}).get("storage", "1Gi")},
            "local": {"path": str(folder / name)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            "claimRef": {
                "apiVersion": "v1",
                "kind": PERSISTENT_VOLUME_CLAIM.kind,
                "namespace": metadata.namespace,
                "name": metadata.name,
                "uid": metadata.uid,
            },
        },
    }


def _name(pvc: PersistentVolumeClaim) -> str:
    return f"pvc-{pvc.metadata.uid}"
