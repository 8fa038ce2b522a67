"""Actions for a model's children: servers as desired, the history, and obsolete objects. Pure."""

from __future__ import annotations

import msgspec

from skysail.core.actions import Action, Apply, Delete, Owner, PatchSpec
from skysail.kinds.serving.children import manifests
from skysail.kinds.serving.plan import claim_period, target_revision
from skysail.kinds.serving.plan.target_revision import Target
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec.desired import FixedScale
from skysail.kinds.serving.spec.revisions import Outcome, Revision
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


def deploy(snapshot: Snapshot, revision: Revision | None) -> Actions:
    """Return the actions that serve a revision; none without a revision."""
    if revision is None:
        return ()
    desired = msgspec.structs.replace(
        snapshot.serving, period=claim_period.period(snapshot), ignores_cloud=_ignores_cloud(snapshot, revision)
    )
    manifest = manifests.deployment(desired, revision, snapshot.config)
    apply = Apply(DEPLOYMENT, manifest, owner(snapshot), enforce=True)
    # Scale first: the patch is bound to the Deployment as it was read, and the apply changes that.
    return (*_services(snapshot, revision), *_scaled(snapshot), apply, *_scaler(snapshot))


def record_revision(snapshot: Snapshot, entry: Revision) -> Actions:
    """Store a revision in the history.

    Replace an unreadable one or one whose content is lost, as none can be edited.
    """
    manifest = manifests.controller_revision(snapshot.serving, entry)
    name = manifest["metadata"]["name"]
    stored = [*(each.object for each in snapshot.history if each.hash == entry.hash), *snapshot.unlisted_revisions]
    spoilt = [each for each in stored if each is not None and each.metadata.name == name]
    apply = Apply(CONTROLLER_REVISION, manifest, owner(snapshot), only_if_absent=True)
    return (*(Delete(CONTROLLER_REVISION, each) for each in spoilt), apply)


def expand_pvc(snapshot: Snapshot) -> Actions:
    """Expand the PVC if the spec asks for more. Only a bound PVC can grow."""
    model_storage, pvc = snapshot.serving.storage, snapshot.claim
    if model_storage is None or pvc is None or not pvc.is_bound or pvc.metadata.is_deleting:
        return ()
    if not pvc.requests_less_than(model_storage.size):
        return ()
    return (PatchSpec(PERSISTENT_VOLUME_CLAIM, pvc, {"resources": {"requests": {"storage": model_storage.size}}}),)


def renumber(snapshot: Snapshot, target: Target, entry: Revision) -> Revision:
    """Return the entry with the next number if it is served again after a later one.

    A failed revision was not served, and a number named in spec.rollbackTo keeps its meaning.
    """
    was_followed = any(each.number > entry.number and each.outcome == "served" for each in snapshot.history)
    if target.is_pinned or not was_followed:
        return entry
    return msgspec.structs.replace(entry, number=max(each.number for each in snapshot.history) + 1)


def mark_outcome(snapshot: Snapshot, entry: Revision, outcome: Outcome) -> Actions:
    """Store the outcome and the number of a revision, if they changed."""
    stored = {(each.hash, each.number, each.outcome) for each in snapshot.history}
    if (entry.hash, entry.number, outcome) in stored:
        return ()
    manifest = manifests.controller_revision(snapshot.serving, msgspec.structs.replace(entry, outcome=outcome))
    return (Apply(CONTROLLER_REVISION, manifest, owner(snapshot)),)


def reset_failed(snapshot: Snapshot, target: Target) -> Actions:
    """Reset failed revisions that are not the target, so that they can be tried again later."""
    others = [
        revision for revision in snapshot.history if revision.outcome == "failed" and revision.hash != target.hash
    ]
    return tuple(action for revision in others for action in mark_outcome(snapshot, revision, ""))


def prune_history(snapshot: Snapshot, target: Target) -> Actions:
    """Delete surplus revisions: failed ones first, then the oldest; never the target or the last served one."""
    last = target_revision.served(snapshot)
    kept = {target.hash, last.hash if last is not None else ""}
    old = sorted(
        (revision for revision in snapshot.history if revision.hash not in kept),
        key=lambda revision: (revision.outcome == "served", revision.number),
    )
    spare = old[: max(len(snapshot.history) - _HISTORY, 0)]
    stored = [
        revision.object
        for revision in spare
        if revision.object is not None and not revision.object.metadata.is_deleting
    ]
    return tuple(Delete(CONTROLLER_REVISION, each) for each in stored)


def cancel_obsolete_job(snapshot: Snapshot, target: Target) -> Actions:
    """Stop the download of a revision that is not the target any more."""
    is_other = snapshot.job is not None and snapshot.job.revision != target.hash
    return delete_job(snapshot) if is_other else ()


def delete_job(snapshot: Snapshot) -> Actions:
    """Delete the Job in the foreground: it stays until its pods are gone, so that none of them writes any more."""
    job = snapshot.job
    return () if job is None or job.metadata.is_deleting else (Delete(JOB, job, foreground=True),)


def is_rolled_out(snapshot: Snapshot, revision: Revision) -> bool:
    """Return whether all servers run this revision and are available."""
    deployment = snapshot.deployment
    return deployment is not None and deployment.revision == revision.hash and deployment.is_rolled_out


def owner(snapshot: Snapshot) -> Owner:
    return Owner(snapshot.serving.kind.resource, snapshot.object)


def _ignores_cloud(snapshot: Snapshot, revision: Revision) -> bool:
    """Return whether servers must ignore those at a cloud. Running servers stay as they are: a change restarts them."""
    deployment = snapshot.deployment
    if deployment is not None and deployment.revision == revision.hash:
        return deployment.ignores_cloud
    return snapshot.has_cloud_revision


def _services(snapshot: Snapshot, revision: Revision) -> Actions:
    is_alone, previous = is_rolled_out(snapshot, revision), target_revision.served(snapshot)
    if snapshot.predecessor is not None and not is_alone:
        # Until ours are available, the Services must route to the previous operator's servers.
        return ()
    others = None if is_alone or previous is None else previous.want
    desired = manifests.services(snapshot.serving, revision.want, others)
    names = {manifest["metadata"]["name"] for manifest in desired}
    spare = [each for each in snapshot.services if each.metadata.name not in names and not each.metadata.is_deleting]
    applies = tuple(Apply(SERVICE, manifest, owner(snapshot), enforce=True) for manifest in desired)
    return (*(Delete(SERVICE, each) for each in spare), *applies)


def _scaled(snapshot: Snapshot) -> Actions:
    """Set a fixed number of replicas once no autoscaler exists that would change it."""
    deployment, scale = snapshot.deployment, snapshot.serving.scale
    if deployment is None or deployment.metadata.is_deleting or snapshot.autoscaler is not None:
        return ()
    if not isinstance(scale, FixedScale) or deployment.spec.replicas == scale.replicas:
        return ()
    return (PatchSpec(DEPLOYMENT, deployment, {"replicas": scale.replicas}),)


def _scaler(snapshot: Snapshot) -> Actions:
    manifest, there = manifests.autoscaler(snapshot.serving), snapshot.autoscaler
    if manifest is not None:
        return (Apply(HORIZONTAL_POD_AUTOSCALER, manifest, owner(snapshot)),)
    if there is None or there.metadata.is_deleting:
        return ()
    return (Delete(HORIZONTAL_POD_AUTOSCALER, there),)
