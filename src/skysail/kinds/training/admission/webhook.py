"""Validating webhook of TrainingJobs. Pure.

All defaults are in the schema, so the webhook changes nothing and is idempotent. Only errors that a change adds are
rejected: an object that was invalid before can still be suspended, labelled and deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from skysail.kinds.training.admission.validation import validate
from skysail.kinds.training.admission.warnings import warnings_for
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kinds.training.children import naming
from skysail.kinds.training.children.volumes import checkpoint_pvc
from skysail.kube.admission.hooks import AdmissionResponse, Hook, Manifest

_MAX_ERRORS = 10
_AMOUNTS = (".limits", ".requests")
_BYTES = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>[kKmMgGtTpP])i?[bB]")
_CLAIM_FIELDS = {"size": "size", "storage_class_name": "storageClassName", "access_mode": "accessMode"}
# An object with generateName has no name yet.
_UNNAMED = "unnamed"


def admit(object_: Manifest, old: Manifest | None) -> AdmissionResponse:
    """Return the verdict.

    Type errors are left to the schema, which names the field, except for quantities with a wrong unit.
    """
    job, previous = _read(object_), _read(old or {})
    if job is None:
        return AdmissionResponse(denied=" ".join(_invalid_quantities("spec", object_.get("spec"))) or None)
    if job.metadata.is_deleting:
        return AdmissionResponse()
    known = validate(previous) if previous is not None else ()
    errors = [sentence for sentence in validate(job) if sentence not in known]
    if previous is not None:
        errors += _immutable_fields(previous, job)
    if errors:
        return AdmissionResponse(denied=" ".join(errors[:_MAX_ERRORS]))
    return AdmissionResponse(warnings=warnings_for(previous, job))


def _read(object_: Manifest) -> TrainingJob | None:
    try:
        job = msgspec.convert(object_, TrainingJob)
    except msgspec.ValidationError:
        return None
    name = job.metadata.name or _UNNAMED
    return msgspec.structs.replace(job, metadata=msgspec.structs.replace(job.metadata, name=name))


def _invalid_quantities(where: str, part: Any) -> Iterator[str]:
    """Yield an error for each quantity with a unit that Kubernetes does not have: 4GB may mean 4Gi or 4G."""
    if not isinstance(part, Mapping):
        return
    for name, value in part.items():
        match = _BYTES.fullmatch(value) if isinstance(value, str) and where.endswith(_AMOUNTS) else None
        if match is not None:
            number, unit = match["number"], match["unit"].upper()
            yield f"{where}.{name} is {value}, which is not a quantity: write {number}{unit}i or {number}{unit}."
        yield from _invalid_quantities(f"{where}.{name}", value)


def _immutable_fields(previous: TrainingJob, job: TrainingJob) -> Iterator[str]:
    """Reject changes of PVC fields that Kubernetes cannot apply to an existing PVC."""
    if checkpoint_pvc(previous) is None or checkpoint_pvc(job) is None:
        return
    for field, name in _CLAIM_FIELDS.items():
        old, new = getattr(previous.spec.checkpoint, field, None), getattr(job.spec.checkpoint, field, None)
        if old != new:
            yield (
                f"spec.checkpoint.{name} cannot be changed from {old or 'its default'} to {new or 'its default'} after "
                f"PVC {naming.checkpoints(job.metadata.name)} was created. Set spec.checkpoint.claimName to your own "
                "PVC, or create the TrainingJob again."
            )


HOOKS = (
    Hook(
        name=TRAINING_JOB.resource.plural,
        admit=admit,
        rules=(
            {
                "apiGroups": [TRAINING_JOB.resource.group],
                "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE"],
                "resources": [TRAINING_JOB.resource.plural],
                "scope": "Namespaced",
            },
        ),
        match_conditions=(("spec-changed", "oldObject == null || object.spec != oldObject.spec"),),
    ),
)
