"""What a plan may ask for: one closed union. `core/executor.py` is the only performer.

Each action is one effect: the process may die right after it, and the next plan must come to the same end.
"""

from __future__ import annotations

from typing import Any

import msgspec

from skysail.cloud.account import Order
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import Resource

Manifest = dict[str, Any]


class Owner(msgspec.Struct, frozen=True):
    """The object that a child belongs to and is collected with."""

    resource: Resource
    object: Object


class Apply(msgspec.Struct, frozen=True):
    """Make a child look like this. No write where it was applied from the same manifest already, and has its labels.

    `only_once`: one that is there stays as it is. `is_kept`: what others change of it is put back.
    """

    resource: Resource
    manifest: Manifest
    owner: Owner
    only_once: bool = False
    is_kept: bool = False


class Create(msgspec.Struct, frozen=True):
    """Make a child that is never applied again, because the server would refuse the change. One that is there stays.

    It costs the server two thirds of applying it.
    """

    resource: Resource
    manifest: Manifest
    owner: Owner


class Delete(msgspec.Struct, frozen=True):
    """End exactly this object, known by its UID. `children_first`: it stays until all that it owns is gone."""

    resource: Resource
    object: Object
    grace_seconds: int | None = None
    children_first: bool = False


class SetFinalizers(msgspec.Struct, frozen=True):
    """Replace the finalizers of an object that has not changed since it was seen."""

    resource: Resource
    object: Object
    finalizers: tuple[str, ...]


class PatchStatus(msgspec.Struct, frozen=True):
    """Tell another controller something, in the status of an object that has not changed since it was seen.

    `fields` replace those of the status; None removes one.
    """

    resource: Resource
    object: Object
    fields: Manifest


class Patch(msgspec.Struct, frozen=True):
    """Change these fields of the spec of an object that has not changed since it was seen, and nothing else of it."""

    resource: Resource
    object: Object
    spec: Manifest


class Launch(msgspec.Struct, frozen=True):
    """Write this status into a claim that has not changed since it was seen, and call the cloud at once.

    Two effects: who dies between them leaves a claim that says that the cloud may have been called. The call goes on by
    itself: it may be long.
    """

    cloud: str
    resource: Resource
    object: Object
    order: Order
    status: msgspec.Struct


class End(msgspec.Struct, frozen=True):
    """Ask the cloud to end an instance. Asked again, nothing else happens. The call goes on by itself."""

    cloud: str
    instance: str
    grace: float


Action = Apply | Create | Delete | SetFinalizers | Patch | PatchStatus | Launch | End


class Note(msgspec.Struct, frozen=True):
    """An event for people, told after the status it speaks of was written."""

    reason: str
    message: str
    warning: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from one snapshot: actions in order, the status to show, what to tell, when to look again.

    `status` is the whole status; None leaves it alone. `can_wait`: it only says more closely what was said before, so
    it is written when there is less to do. `look_again` is in seconds; None means at the next resync.
    """

    actions: tuple[Action, ...] = ()
    status: msgspec.Struct | None = None
    can_wait: bool = False
    notes: tuple[Note, ...] = ()
    look_again: float | None = None
