"""Which claims get a disk, and which disks go."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from skysail.base.names import PROVISIONER_NAME
from skysail.local.storage.provisioner import PersistentVolumeClaim, Volume, manifest, released_volumes, unbound_pvcs

OURS = {"pv.kubernetes.io/provisioned-by": PROVISIONER_NAME}


def pvc(metadata: dict | None = None, **spec) -> PersistentVolumeClaim:
    base = {"name": "c", "namespace": "n", "uid": "u1", **(metadata or {})}
    spec = {"storageClassName": "standard", "accessModes": ["ReadWriteOnce"], **spec}
    return msgspec.convert({"metadata": base, "spec": spec}, PersistentVolumeClaim)


def volume(phase: str = "Released", policy: str = "Delete", **metadata) -> Volume:
    base = {"name": "pvc-u1", "annotations": OURS, **metadata}
    spec = {"persistentVolumeReclaimPolicy": policy}
    return msgspec.convert({"metadata": base, "spec": spec, "status": {"phase": phase}}, Volume)


def test_a_claim_of_our_class_gets_a_disk_once():
    assert unbound_pvcs([pvc()], set()) == [pvc()]
    assert unbound_pvcs([pvc()], {"pvc-u1"}) == []


@pytest.mark.parametrize(
    "other",
    [
        pvc(storageClassName="other"),
        pvc(storageClassName=""),
        pvc(volumeName="chosen"),
        pvc(volumeMode="Block"),
        pvc({"deletionTimestamp": "2026-11-15T12:00:00Z"}),
    ],
)
def test_other_claims_are_left_alone(other):
    assert unbound_pvcs([other], set()) == []


def test_a_disk_goes_with_its_claim():
    assert released_volumes([volume()]) == [volume()]


@pytest.mark.parametrize(
    "kept",
    [
        volume("Bound"),
        volume("Available"),
        volume(policy="Retain"),
        volume(annotations={}),
        volume(deletionTimestamp="2026-11-15T12:00:00Z"),
    ],
)
def test_other_disks_stay(kept):
    assert released_volumes([kept]) == []


def test_a_disk_is_bound_to_its_very_claim_and_to_this_machine():
    made = manifest(pvc(resources={"requests": {"storage": "5Gi"}}), Path("/home/disks"))
    spec = made["spec"]
    assert made["metadata"]["name"] == "pvc-u1"
    assert spec["claimRef"]["uid"] == "u1"
    assert spec["capacity"] == {"storage": "5Gi"}
    assert spec["accessModes"] == ["ReadWriteOnce"]
    assert spec["local"]["path"] == "/home/disks/pvc-u1"
