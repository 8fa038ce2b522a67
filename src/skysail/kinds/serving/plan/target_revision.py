"""Target revision, served revision, and the revision that the servers should run. Pure."""

from __future__ import annotations

import msgspec

from skysail.kinds.serving.api.types import Failure
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec import model_uri
from skysail.kinds.serving.spec.desired import RevisionSpec
from skysail.kinds.serving.spec.revisions import Revision, hash_of

# Failure steps of servers; preparation has other steps.
_OF_SERVERS = frozenset({"Deploy", "Ready"})


class Target(msgspec.Struct, frozen=True):
    """Target revision. `entry` is None until it is prepared.

    `lost` is its entry in the history if its content was deleted with the PVC.
    """

    want: RevisionSpec
    hash: str
    entry: Revision | None = None
    lost: Revision | None = None
    is_pinned: bool = False


def target(snapshot: Snapshot) -> Target | None:
    """Return the target revision, or None if `rollbackTo` names one that does not exist."""
    number = snapshot.serving.rollback_to
    if number is None:
        spec = snapshot.serving.want
        hash_ = hash_of(spec)
        known = next((revision for revision in snapshot.history if revision.hash == hash_), None)
    else:
        known = next((revision for revision in snapshot.history if revision.number == number), None)
        if known is None:
            return None
        spec, hash_ = known.want, known.hash
    is_kept = known is not None and content_exists(snapshot, known)
    revision, lost = (known, None) if is_kept else (None, known)
    return Target(spec, hash_, revision, lost, is_pinned=number is not None)


def content_exists(snapshot: Snapshot, revision: Revision) -> bool:
    """Return whether the content of a revision still exists: an MLModel's content is deleted with its PVC."""
    if snapshot.serving.storage is None or model_uri.image_path(revision.want.uri):
        return True
    return snapshot.claim is not None and snapshot.claim.metadata.uid == revision.claim


def served(snapshot: Snapshot) -> Revision | None:
    """Return the revision that all servers last ran, or None. It is kept if another revision fails."""
    good = [
        revision for revision in snapshot.history if revision.outcome == "served" and content_exists(snapshot, revision)
    ]
    last = next((revision for revision in good if revision.number == snapshot.object.status.revision), None)
    return last or max(good, key=lambda revision: revision.number, default=None)


def rollout_revision(snapshot: Snapshot, target: Target) -> Revision | None:
    """Return the revision that the servers should run: the target, unless it is not prepared or failed."""
    if target.entry is None or target.entry.outcome == "failed" or has_failed(snapshot, target):
        return served(snapshot)
    return target.entry


def served_instead(snapshot: Snapshot, target: Target) -> Revision | None:
    """Return the served revision if it is not the target."""
    previous = served(snapshot)
    return None if previous is None or previous.hash == target.hash else previous


def has_failed(snapshot: Snapshot, target: Target) -> bool:
    """Return whether a failure of the target's servers is recorded and there is a revision to roll back to."""
    return recorded_failure(snapshot, target) is not None and served_instead(snapshot, target) is not None


def recorded_failure(snapshot: Snapshot, target: Target) -> Failure | None:
    """Return the recorded failure of the target's servers, or None."""
    failure = snapshot.object.status.failure
    is_of_it = failure is not None and failure.revision == target.hash and failure.step in _OF_SERVERS
    return failure if is_of_it else None
