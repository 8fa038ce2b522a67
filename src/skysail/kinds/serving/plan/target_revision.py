"""Target revision, served revision, and the revision that the servers should run. Pure."""

from __future__ import annotations

import msgspec

from skysail.kinds.serving.api.types import Failure
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec import model_uri
from skysail.kinds.serving.spec.desired import Want
from skysail.kinds.serving.spec.revisions import Entry, hash_of

# Failure steps of servers; preparation has other steps.
_OF_SERVERS = frozenset({"Deploy", "Ready"})


class Target(msgspec.Struct, frozen=True):
    """Target revision. `entry` is None until it is prepared.

    `lost` is its entry in the history if its content was deleted with the PVC.
    """

    want: Want
    hash: str
    entry: Entry | None = None
    lost: Entry | None = None
    is_pinned: bool = False


def target(snapshot: Snapshot) -> Target | None:
    """Return the target revision, or None if `rollbackTo` names one that does not exist."""
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
    """Return whether the content of a revision still exists: an MLModel's content is deleted with its PVC."""
    if snapshot.serving.storage is None or model_uri.in_image(entry.want.uri):
        return True
    return snapshot.claim is not None and snapshot.claim.metadata.uid == entry.claim


def served(snapshot: Snapshot) -> Entry | None:
    """Return the revision that all servers last ran, or None. It is kept if another revision fails."""
    good = [entry for entry in snapshot.history if entry.outcome == "served" and is_there(snapshot, entry)]
    last = next((entry for entry in good if entry.number == snapshot.object.status.revision), None)
    return last or max(good, key=lambda entry: entry.number, default=None)


def aim(snapshot: Snapshot, wanted: Target) -> Entry | None:
    """Return the revision that the servers should run: the target, unless it is not prepared or failed."""
    if wanted.entry is None or wanted.entry.outcome == "failed" or is_condemned(snapshot, wanted):
        return served(snapshot)
    return wanted.entry


def replaces(snapshot: Snapshot, wanted: Target) -> Entry | None:
    """Return the served revision if it is not the target."""
    before = served(snapshot)
    return None if before is None or before.hash == wanted.hash else before


def is_condemned(snapshot: Snapshot, wanted: Target) -> bool:
    """Return whether a failure of the target's servers is recorded and there is a revision to roll back to."""
    return verdict(snapshot, wanted) is not None and replaces(snapshot, wanted) is not None


def verdict(snapshot: Snapshot, wanted: Target) -> Failure | None:
    """Return the recorded failure of the target's servers, or None."""
    found = snapshot.object.status.failure
    is_of_it = found is not None and found.revision == wanted.hash and found.step in _OF_SERVERS
    return found if is_of_it else None
