"""Snapshot of one Service for its plan."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from skysail.claims.bridging.targets import Target
from skysail.claims.types import CloudInstance
from skysail.kinds.cloud_services.objects import Pod, Service
from skysail.kube.api.objects import Object


class Member(msgspec.Struct, frozen=True):
    """A pod behind the Service, the claim of its running instance, and its rank if the claim is that of a gang.

    `claim` is None while no instance runs.
    """

    pod: Pod
    claim: CloudInstance | None
    rank: int = 0


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Complete input of the plan.

    `members`: pods at clouds that the Service selects. `slices`: EndpointSlices that Skysail wrote for the Service.
    `addresses`: current addresses of the bridge.
    `proposals`: a free bridge port for each target of a claim that has none, by claim name and target.
    `shared`: ports of claims that an older claim has as well, by claim name and port.
    `unused`: targets of bridge ports to which no Service leads any more, by claim name. Known only with proposals.
    `unreachable`: members' providers to which the bridge cannot connect.
    """

    object: Service
    now: datetime
    members: tuple[Member, ...] = ()
    slices: tuple[Object, ...] = ()
    addresses: tuple[str, ...] = ()
    proposals: Mapping[tuple[str, Target], int] = msgspec.field(default_factory=dict)
    shared: frozenset[tuple[str, int]] = frozenset()
    unused: frozenset[tuple[str, Target]] = frozenset()
    unreachable: frozenset[str] = frozenset()
