"""Snapshot of one Service for its plan."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from skysail.claims.types import CloudInstance
from skysail.kinds.cloud_services.objects import Pod, Service
from skysail.kube.api.objects import Object


class Member(msgspec.Struct, frozen=True):
    """A pod behind the Service, and the claim of its running instance. `claim` is None while no instance runs."""

    pod: Pod
    claim: CloudInstance | None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Complete input of the plan.

    `members`: pods at clouds that the Service selects. `slices`: EndpointSlices that Skysail wrote for the Service.
    `addresses`: current addresses of the bridge.
    `proposals`: a free bridge port for each port of a claim that has none, by claim name and target port.
    `shared`: ports of claims that an older claim has as well, by claim name and port.
    `unreachable`: members' providers to which the bridge cannot connect.
    """

    object: Service
    now: datetime
    members: tuple[Member, ...] = ()
    slices: tuple[Object, ...] = ()
    addresses: tuple[str, ...] = ()
    proposals: Mapping[tuple[str, int], int] = msgspec.field(default_factory=dict)
    shared: frozenset[tuple[str, int]] = frozenset()
    unreachable: frozenset[str] = frozenset()
