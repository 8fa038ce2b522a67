"""Actions that a plan can contain, as one closed union. Only `core/executor.py` executes them.

Each action is one effect: the process may crash right after it, and the next plan must reach the same result.
"""

from __future__ import annotations

from typing import Any

import msgspec

from skysail.cloud.account import LaunchSpec
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import Resource

Manifest = dict[str, Any]


class Owner(msgspec.Struct, frozen=True):
    """Owner of a child. The garbage collector deletes the child with it."""

    resource: Resource
    object: Object


class Apply(msgspec.Struct, frozen=True):
    """Server-side apply of a child. Skipped if the same manifest was applied before and the labels are unchanged.

    `only_if_absent`: leave an existing child unchanged. `enforce`: revert changes that others made to the child.
    """

    resource: Resource
    manifest: Manifest
    owner: Owner
    only_if_absent: bool = False
    enforce: bool = False


class Create(msgspec.Struct, frozen=True):
    """Create an object that is never updated, because the API server would reject updates. Skipped if it exists.

    Costs the API server two thirds of an apply. `owner` is None for an object that outlives every other one. Such an
    object has the label managed-by of Skysail; one without it is a name conflict. `may_be_released`: an existing object
    without an owner is the same one if it has all labels of the manifest.
    """

    resource: Resource
    manifest: Manifest
    owner: Owner | None
    may_be_released: bool = False


class Delete(msgspec.Struct, frozen=True):
    """Delete the object with this UID. `foreground`: keep the object until all its dependents are deleted."""

    resource: Resource
    object: Object
    grace_seconds: int | None = None
    foreground: bool = False


class SetFinalizers(msgspec.Struct, frozen=True):
    """Replace the finalizers of an object, if the object is unchanged since it was read."""

    resource: Resource
    object: Object
    finalizers: tuple[str, ...]


class PatchStatus(msgspec.Struct, frozen=True):
    """Patch the status of an object of another controller, if the object is unchanged since it was read.

    `fields` replace those of the status. None removes a field.
    """

    resource: Resource
    object: Object
    fields: Manifest


class PatchSpec(msgspec.Struct, frozen=True):
    """Patch only these fields of the spec of an object, if the object is unchanged since it was read."""

    resource: Resource
    object: Object
    spec: Manifest


class PatchMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Add labels and annotations to an object of another controller, if it is unchanged since it was read."""

    resource: Resource
    object: Object
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class SetOwner(msgspec.Struct, frozen=True):
    """Make an object go with its owner, or outlive every other one (None), if it is unchanged since it was read."""

    resource: Resource
    object: Object
    owner: Owner | None


class Bind(msgspec.Struct, frozen=True, kw_only=True):
    """Bind a pod to a node, if the pod is unchanged since it was read and has no node. Irreversible.

    The cache of the executor must hold pods without a node only. `provider` and `usd_per_hour` are for the log.
    """

    resource: Resource
    object: Object
    node: str
    provider: str = ""
    usd_per_hour: float | None = None


class LaunchInstance(msgspec.Struct, frozen=True):
    """Write the status of a claim that is unchanged since it was read, then call the cloud.

    Two effects: after a crash between them, the status says that the cloud may have been called. The call may take
    long, so it runs in the background.
    """

    cloud: str
    resource: Resource
    object: Object
    launch_spec: LaunchSpec
    status: msgspec.Struct


class TerminateInstance(msgspec.Struct, frozen=True):
    """Ask the cloud to terminate an instance. Idempotent. The call runs in the background."""

    cloud: str
    instance: str
    grace: float


class DeleteCloudVolume(msgspec.Struct, frozen=True):
    """Ask the cloud to delete the volume with the checkpoints of an object. Idempotent. Runs in the background.

    The name of the volume follows from namespace and UID of the object, so no other volume can be meant.
    """

    cloud: str
    resource: Resource
    object: Object


Action = (
    Apply
    | Create
    | Delete
    | SetFinalizers
    | PatchSpec
    | PatchStatus
    | PatchMetadata
    | SetOwner
    | Bind
    | LaunchInstance
    | TerminateInstance
    | DeleteCloudVolume
)


class Event(msgspec.Struct, frozen=True):
    """Event that is recorded after the status it refers to was written."""

    reason: str
    message: str
    warning: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Result of planning one snapshot: actions in order, new status, events, and the delay until the next reconcile.

    `status` is the complete status; None leaves it unchanged. `is_deferrable`: the status only adds detail, so the
    write may be delayed under load. `requeue_after` is in seconds; None means the next resync.
    """

    actions: tuple[Action, ...] = ()
    status: msgspec.Struct | None = None
    is_deferrable: bool = False
    events: tuple[Event, ...] = ()
    requeue_after: float | None = None
