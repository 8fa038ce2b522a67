"""Revision history of a model."""

from __future__ import annotations

import msgspec

from skysail.base.errors import UserError
from skysail.base.names import Condition, Label
from skysail.base.settings import Settings
from skysail.cli.cluster import Model
from skysail.core import conditions
from skysail.kinds.serving.api.types import ModelDeployment
from skysail.kinds.serving.spec import revisions
from skysail.kinds.serving.spec.config import serving_config
from skysail.kinds.serving.spec.desired import desired_model
from skysail.kinds.serving.spec.revisions import ControllerRevision, Revision
from skysail.kube.api.resources import CONTROLLER_REVISION
from skysail.kube.client.client import Client


class NoSuchRevision(UserError):
    """The history has no such revision. The message lists the existing ones."""


class Failed(UserError):
    """The revision failed and was rolled back. The message says how to retry it."""


async def history(client: Client, model: Model) -> list[Revision]:
    """Return the revisions, newest first. Only those with the model's UID count: other objects are untrusted."""
    query = {"labelSelector": f"{Label.MODEL_UID}={model.metadata.uid}"}
    rows = await client.list_objects(CONTROLLER_REVISION, model.metadata.namespace, query, ControllerRevision)
    entries = [entry for row in rows if _is_of(model, row) and (entry := revisions.from_object(row))]
    return sorted(entries, key=lambda entry: -entry.number)


def choose(model: Model, entries: list[Revision], number: int | None) -> Revision:
    """Return the revision with this number, else the served one if it is not the desired one, else the previous one."""
    name, now = model.metadata.name, model.status.revision
    if number is None:
        newest = now if model.status.candidate or _has_failed(model) else now - 1
        previous = [entry for entry in entries if entry.outcome == "served" and entry.number <= newest]
        if not previous:
            raise NoSuchRevision(
                f"{name} has no earlier revision to roll back to. Its revisions: {_listed(model, entries)}."
            )
        return previous[0]
    found = next((entry for entry in entries if entry.number == number), None)
    if found is None:
        raise NoSuchRevision(f"{name} has no revision {number}. Its revisions: {_listed(model, entries)}.")
    if found.outcome == "failed":
        raise Failed(
            f"Revision {number} is the current spec of {name}, and failed. Correct the spec, or retry it with "
            f"`skysail rollback {name} --to {now}` and then `skysail rollback {name} --undo`."
        )
    return found


def failed_before(model: Model, entries: list[Revision]) -> str:
    """Return a sentence about the revision of the spec if it was prepared but never served; otherwise nothing."""
    spec = desired_model(model, serving_config(Settings())).want
    # Only the operator knows the default images.
    entry = next((each for each in entries if msgspec.structs.replace(each.want, image=spec.image) == spec), None)
    if entry is None or entry.outcome == "served":
        return ""
    failure = model.status.failure
    why = f": {failure.message}" if failure is not None and failure.revision == entry.hash else "."
    return (
        f" Revision {revision_name(model, entry)} is tried again, although it failed or was stopped before it was "
        f"served{why} `skysail why {model.metadata.name} -n {model.metadata.namespace}` shows how it goes."
    )


def _has_failed(model: Model) -> bool:
    """Return whether the served revision differs from the desired one: then a rollback keeps the served one."""
    failed = conditions.find_condition(model.status.conditions, Condition.UPDATE_FAILED)
    return failed is not None and failed.status == "True"


def revision_name(model: Model, revision: Revision) -> str:
    """Format a revision. Only ModelDeployments name their revisions."""
    version = revision.want.version if isinstance(model, ModelDeployment) else ""
    outcome = "served now" if revision.number == model.status.revision else revision.outcome
    about = ", ".join(word for word in (version, outcome) if word)
    return f"{revision.number} ({about})" if about else str(revision.number)


def _listed(model: Model, entries: list[Revision]) -> str:
    return ", ".join(revision_name(model, revision) for revision in entries) or "none"


def _is_of(model: Model, revision: ControllerRevision) -> bool:
    owner = revision.metadata.controller
    return owner is not None and owner.uid == model.metadata.uid
