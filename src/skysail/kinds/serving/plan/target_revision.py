"""Which revision is wanted, which one is served, and which one the servers should be made from. Pure."""

from __future__ import annotations

import msgspec

from skysail.kinds.serving.api.types import Failure
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec import model_uri
from skysail.kinds.serving.spec.desired import Want
from skysail.kinds.serving.spec.revisions import Entry, hash_of

# Steps of what is wrong with servers; those of what makes a revision ready have other names.
_OF_SERVERS = frozenset({"Deploy", "Ready"})


class Target(msgspec.Struct, frozen=True):
    """The revision that is wanted. `entry` is None until it was found good.

    `lost` is its place in the history where its content has gone with the claim that it was on.
    """

    want: Want
    hash: str
    entry: Entry | None = None
    lost: Entry | None = None
    is_pinned: bool = False


def target(snapshot: Snapshot) -> Target | None:
    """None where `rollbackTo` names one that is not there."""
    number = snapshot.serving.rollback_to
    if number is None:
        want = snapshot.serving.want
        hash_ = hash_of(want)
        known = next((entry for entry in snapshot.history if entry.hash == hash_), None)
    else:
        known = next((entry for entry in snapshot.history if entry.number == number), None)
        if known is None:
            return None
        want, hash_ = known.want, known.hash
    is_kept = known is not None and is_there(snapshot, known)
    entry, lost = (known, None) if is_kept else (None, known)
    return Target(want, hash_, entry, lost, is_pinned=number is not None)


def is_there(snapshot: Snapshot, entry: Entry) -> bool:
    """Whether its content still is: that of an MLModel goes with the claim that it was downloaded to."""
    if snapshot.serving.storage is None or model_uri.in_image(entry.want.uri):
        return True
    return snapshot.claim is not None and snapshot.claim.metadata.uid == entry.claim


def served(snapshot: Snapshot) -> Entry | None:
    """The one that was last seen to be served by all servers. It is what stays when another one fails."""
    good = [entry for entry in snapshot.history if entry.outcome == "served" and is_there(snapshot, entry)]
    last = next((entry for entry in good if entry.number == snapshot.object.status.revision), None)
    return last or max(good, key=lambda entry: entry.number, default=None)


def aim(snapshot: Snapshot, wanted: Target) -> Entry | None:
    """What the servers should be made from: what is wanted, unless it is not ready to be served or failed."""
    if wanted.entry is None or wanted.entry.outcome == "failed" or is_condemned(snapshot, wanted):
        return served(snapshot)
    return wanted.entry


def replaces(snapshot: Snapshot, wanted: Target) -> Entry | None:
    """The revision that is served while another one is wanted."""
    before = served(snapshot)
    return None if before is None or before.hash == wanted.hash else before


def is_condemned(snapshot: Snapshot, wanted: Target) -> bool:
    """Whether it was written down that servers of it fail, and there is one to go back to."""
    return verdict(snapshot, wanted) is not None and replaces(snapshot, wanted) is not None


def verdict(snapshot: Snapshot, wanted: Target) -> Failure | None:
    """What was written down of servers of it that fail."""
    found = snapshot.object.status.failure
    is_of_it = found is not None and found.revision == wanted.hash and found.step in _OF_SERVERS
    return found if is_of_it else None
