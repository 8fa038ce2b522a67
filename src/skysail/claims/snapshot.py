"""What is known of one claim at one moment. Facts from outside are present, absent or unknown."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from skysail.claims.types import CloudInstance
from skysail.cloud.account import Instance, Order, Terms
from skysail.cloud.errors import ProviderError


class Owner(StrEnum):
    """Whether the object that an instance works for exists. Only a live answer of the API server says ABSENT."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Seen(msgspec.Struct, frozen=True):
    """The cloud has these instances for the claim, the oldest first. Never empty.

    Where the claim knows an id, its instance is among them: another one says nothing of ours.
    """

    instances: tuple[Instance, ...]


class Unseen(msgspec.Struct, frozen=True, kw_only=True):
    """No listing shows it: in `listings` complete ones in a row over so many `seconds`, begun after the last write.

    `is_gone` adds the other way to ask: the cloud says that it does not have the instance of the claim's id.
    `before` is what was last seen: a cloud forgets what has ended, perhaps before its end could be written down.
    `others` are instances of the claim beside the one that it knows.
    """

    listings: int = 0
    seconds: float = 0.0
    is_gone: bool = False
    before: tuple[Instance, ...] = ()
    others: tuple[Instance, ...] = ()


Sight = Seen | Unseen


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call to the cloud by this process: under way while there is neither an instance nor an error.

    One that `failed` because the cloud could not now is repeated after a `pause`.
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
    """All that the plan of a claim is made from.

    `ticket` is a nonce of this process that was never used for a call: who wrote it into the claim may call.
    `outage`, `brake` and `rival` are sentences, empty where nothing stands in the way. Without an account the cloud
    can neither be asked nor told anything. `throttled` is the last call, for whatever claim, after which the cloud
    asked for a pause. `lived` seconds have passed for this process since it first saw the claim's deadline.
    """

    object: CloudInstance
    now: datetime
    identity: str
    ticket: str
    terms: Terms
    sight: Sight
    has_account: bool = True
    owner: Owner = Owner.PRESENT
    call: Call | None = None
    throttled: Call | None = None
    order: Order | None = None
    outage: str = ""
    brake: str = ""
    rival: str = ""
    is_superseded: bool = False
    lived: float = 0.0
    # When each instance of this cloud was last asked to end, by this process.
    asked: Mapping[str, datetime] = msgspec.field(default_factory=dict)
