"""Snapshot of one claim for its plan. External facts are present, absent or unknown."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from skysail.claims.limits.spending_facts import SpendingFacts
from skysail.claims.types import CloudInstance
from skysail.cloud.account import Instance, LaunchSpec, Timings
from skysail.cloud.errors import ProviderError


class OwnerState(StrEnum):
    """Existence of the object that an instance runs for. ABSENT requires a live answer of the API server."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Observed(msgspec.Struct, frozen=True):
    """Instances of the claim at the cloud, oldest first. Never empty.

    If the claim has an instance id, that instance is among them: a duplicate proves nothing about it.
    """

    instances: tuple[Instance, ...]


class NotObserved(msgspec.Struct, frozen=True, kw_only=True):
    """The instance of the claim is missing from the inventories.

    `listings`: number of complete inventories in a row without it, requested after the last write of the claim.
    `seconds`: time between the first and the last of them.
    `is_gone`: a lookup by id did not find the instance either.
    `before`: the instances last seen. A cloud may forget a terminated instance before we could record its end.
    `others`: other instances of the claim.
    """

    listings: int = 0
    seconds: float = 0.0
    is_gone: bool = False
    before: tuple[Instance, ...] = ()
    others: tuple[Instance, ...] = ()


Observation = Observed | NotObserved


class CallResult(msgspec.Struct, frozen=True, kw_only=True):
    """A launch call of this process. It is in progress while it has neither an instance nor an error.

    After a transient error, `failed` is the time of the failure, and the call is repeated after `pause`.
    """

    nonce: str
    instance: Instance | None = None
    error: ProviderError | None = None
    failed: datetime | None = None
    pause: timedelta = timedelta()

    @property
    def is_under_way(self) -> bool:
        return self.instance is None and self.error is None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Complete input of the plan of a claim.

    `nonce`: an unused nonce of this process. The process that wrote its nonce into the claim may call the cloud.
    `has_account`: False if no account is configured, so that the cloud cannot be called at all.
    `outage`, `limited_by`, `blocked_by`: reasons to wait as sentences, empty if there is none.
    `throttled`: the last call, for any claim, that the cloud throttled.
    `uptime`: seconds since this process first saw the claim's deadline.
    `spending`: policies and money of the namespace.
    """

    object: CloudInstance
    now: datetime
    identity: str
    nonce: str
    timings: Timings
    observation: Observation
    has_account: bool = True
    owner: OwnerState = OwnerState.PRESENT
    call: CallResult | None = None
    throttled: CallResult | None = None
    launch_spec: LaunchSpec | None = None
    outage: str = ""
    limited_by: str = ""
    blocked_by: str = ""
    is_superseded: bool = False
    uptime: float = 0.0
    spending: SpendingFacts = SpendingFacts(unknown_policies="Policies are not known.")
    # Time of the last termination request of this process, by instance id.
    termination_requests: Mapping[str, datetime] = msgspec.field(default_factory=dict)
