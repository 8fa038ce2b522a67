"""Actions for a model's children: servers as desired, the history, and obsolete objects. Pure."""

from __future__ import annotations

import msgspec

from skysail.core.actions import Action, Apply, Delete, Owner, Patch
from skysail.kinds.serving.children import manifests
from skysail.kinds.serving.plan import target_revision
from skysail.kinds.serving.plan.target_revision import Target
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec.desired import Fixed
from skysail.kinds.serving.spec.revisions import Entry, Outcome
from skysail.kube.api.resources import (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    HORIZONTAL_POD_AUTOSCALER,
    JOB,
    PERSISTENT_VOLUME_CLAIM,
    SERVICE,
)

Actions = tuple[Action, ...]

# Number of revisions to keep for a rollback.
_HISTORY = 10


def servers(snapshot: Snapshot, entry: Entry | None) -> Actions:
    """Return the actions that serve a revision; none without a revision."""
    if entry is None:
        return ()
    manifest = manifests.deployment(snapshot.serving, entry, snapshot.terms)
    made = Apply(DEPLOYMENT, manifest, owner(snapshot), is_kept=True)
    # Scale first: the patch is bound to the Deployment as it was read, and the apply changes that.
    return (*_doors(snapshot, entry), *_scaled(snapshot), made, *_scaler(snapshot))


def recorded(snapshot: Snapshot, entry: Entry) -> Actions:
    """Store a revision in the history.

    Replace an unreadable one or one whose content is lost, as none can be edited.
    """
    manifest = manifests.revision(snapshot.serving, entry)
    name = manifest["metadata"]["name"]
    stored = [*(each.object for each in snapshot.history if each.hash == entry.hash), *snapshot.strays]
    spoilt = [each for each in stored if each is not None and each.metadata.name == name]
    made = Apply(CONTROLLER_REVISION, manifest, owner(snapshot), only_once=True)
    return (*(Delete(CONTROLLER_REVISION, each) for each in spoilt), made)


def grown(snapshot: Snapshot) -> Actions:
    """Expand the PVC if the spec asks for more. Only a bound PVC can grow."""
    storage, claim = snapshot.serving.storage, snapshot.claim
    if storage is None or claim is None or not claim.is_bound or claim.metadata.is_deleting:
        return ()
    if not claim.is_below(storage.size):
        return ()
    return (Patch(PERSISTENT_VOLUME_CLAIM, claim, {"resources": {"requests": {"storage": storage.size}}}),)


def renewed(snapshot: Snapshot, wanted: Target, entry: Entry) -> Entry:
    """Return the entry with the next number if it is served again after a later one.

    A failed revision was not served, and a number named in spec.rollbackTo keeps its meaning.
    """
    was_followed = any(each.number > entry.number and each.outcome == "served" for each in snapshot.history)
    if wanted.is_pinned or not was_followed:
        return entry
    return msgspec.structs.replace(entry, number=max(each.number for each in snapshot.history) + 1)


def marked(snapshot: Snapshot, entry: Entry, outcome: Outcome) -> Actions:
    """Store the outcome and the number of a revision, if they changed."""
    stored = {(each.hash, each.number, each.outcome) for each in snapshot.history}
    if (entry.hash, entry.number, outcome) in stored:
        return ()
    manifest = manifests.revision(snapshot.serving, msgspec.structs.replace(entry, outcome=outcome))
    return (Apply(CONTROLLER_REVISION, manifest, owner(snapshot)),)


def forgiven(snapshot: Snapshot, wanted: Target) -> Actions:
    """Reset failed revisions that are not the target, so that they can be tried again later."""
    others = [entry for entry in snapshot.history if entry.outcome == "failed" and entry.hash != wanted.hash]
    return tuple(action for entry in others for action in marked(snapshot, entry, ""))


def pruned(snapshot: Snapshot, wanted: Target) -> Actions:
    """Delete surplus revisions: failed ones first, then the oldest; never the target or the last served one."""
    last = target_revision.served(snapshot)
    kept = {wanted.hash, last.hash if last is not None else ""}
    old = sorted(
        (entry for entry in snapshot.history if entry.hash not in kept),
        key=lambda entry: (entry.outcome == "served", entry.number),
    )
    spare = old[: max(len(snapshot.history) - _HISTORY, 0)]
    stored = [entry.object for entry in spare if entry.object is not None and not entry.object.metadata.is_deleting]
    return tuple(Delete(CONTROLLER_REVISION, each) for each in stored)


def cleared(snapshot: Snapshot, wanted: Target) -> Actions:
    """Stop the download of a revision that is not the target any more."""
    is_other = snapshot.job is not None and snapshot.job.revision != wanted.hash
    return ended(snapshot) if is_other else ()


def ended(snapshot: Snapshot) -> Actions:
    """Delete the Job in the foreground: it stays until its pods are gone, so that none of them writes any more."""
    job = snapshot.job
    return () if job is None or job.metadata.is_deleting else (Delete(JOB, job, children_first=True),)


def is_rolled_out(snapshot: Snapshot, entry: Entry) -> bool:
    """Return whether all servers run this revision and are available."""
    deployment = snapshot.deployment
    return deployment is not None and deployment.revision == entry.hash and deployment.is_rolled_out


def owner(snapshot: Snapshot) -> Owner:
    return Owner(snapshot.serving.kind.resource, snapshot.object)


def _doors(snapshot: Snapshot, entry: Entry) -> Actions:
    is_alone, before = is_rolled_out(snapshot, entry), target_revision.served(snapshot)
    if snapshot.predecessor is not None and not is_alone:
        # Until ours are available, the Services must route to the previous operator's servers.
        return ()
    others = None if is_alone or before is None else before.want
    wanted = manifests.services(snapshot.serving, entry.want, others)
    names = {manifest["metadata"]["name"] for manifest in wanted}
    spare = [each for each in snapshot.services if each.metadata.name not in names and not each.metadata.is_deleting]
    made = tuple(Apply(SERVICE, manifest, owner(snapshot), is_kept=True) for manifest in wanted)
    return (*(Delete(SERVICE, each) for each in spare), *made)


def _scaled(snapshot: Snapshot) -> Actions:
    """Set a fixed number of replicas once no autoscaler exists that would change it."""
    deployment, scale = snapshot.deployment, snapshot.serving.scale
    if deployment is None or deployment.metadata.is_deleting or snapshot.autoscaler is not None:
        return ()
    if not isinstance(scale, Fixed) or deployment.spec.replicas == scale.replicas:
        return ()
    return (Patch(DEPLOYMENT, deployment, {"replicas": scale.replicas}),)


def _scaler(snapshot: Snapshot) -> Actions:
    manifest, there = manifests.autoscaler(snapshot.serving), snapshot.autoscaler
    if manifest is not None:
        return (Apply(HORIZONTAL_POD_AUTOSCALER, manifest, owner(snapshot)),)
    if there is None or there.metadata.is_deleting:
        return ()
    return (Delete(HORIZONTAL_POD_AUTOSCALER, there),)
