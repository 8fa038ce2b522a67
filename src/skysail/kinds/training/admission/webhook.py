"""Validating webhook of TrainingJobs. Pure.

All defaults are in the schema, so the webhook changes nothing and is idempotent. Only errors that a change adds are
rejected: an object that was invalid before can still be suspended, labelled and deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from skysail.kinds.training.admission.validation import objections
from skysail.kinds.training.admission.warnings import cautions
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kinds.training.children import naming
from skysail.kinds.training.children.volumes import checkpoint_claim
from skysail.kube.admission.hooks import Hook, Manifest, Verdict

_MOST = 10
_AMOUNTS = (".limits", ".requests")
_BYTES = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>[kKmMgGtTpP])i?[bB]")
_CLAIM_FIELDS = {"size": "size", "storage_class_name": "storageClassName", "access_mode": "accessMode"}
# An object with generateName has no name yet.
_UNNAMED = "unnamed"


def admit(object_: Manifest, old: Manifest | None) -> Verdict:
    """Return the verdict.

    Type errors are left to the schema, which names the field, except for quantities with a wrong unit.
    """
    job, before = _read(object_), _read(old or {})
    if job is None:
        return Verdict(refused=" ".join(_misspelt("spec", object_.get("spec"))) or None)
    if job.metadata.is_deleting:
        return Verdict()
    known = objections(before) if before is not None else ()
    wrong = [sentence for sentence in objections(job) if sentence not in known]
    if before is not None:
        wrong += _fixed(before, job)
    if wrong:
        return Verdict(refused=" ".join(wrong[:_MOST]))
    return Verdict(warnings=cautions(before, job))


def _read(object_: Manifest) -> TrainingJob | None:
    try:
        job = msgspec.convert(object_, TrainingJob)
    except msgspec.ValidationError:
        return None
    name = job.metadata.name or _UNNAMED
    return msgspec.structs.replace(job, metadata=msgspec.structs.replace(job.metadata, name=name))


def _misspelt(where: str, part: Any) -> Iterator[str]:
    """Yield an error for each quantity with a unit that Kubernetes does not have: 4GB may mean 4Gi or 4G."""
    if not isinstance(part, Mapping):
        return
    for name, value in part.items():
        found = _BYTES.fullmatch(value) if isinstance(value, str) and where.endswith(_AMOUNTS) else None
        if found is not None:
            number, unit = found["number"], found["unit"].upper()
            yield f"{where}.{name} is {value}, which is not a quantity: write {number}{unit}i or {number}{unit}."
        yield from _misspelt(f"{where}.{name}", value)


def _fixed(before: TrainingJob, job: TrainingJob) -> Iterator[str]:
    """Reject changes of PVC fields that Kubernetes cannot apply to an existing PVC."""
    if checkpoint_claim(before) is None or checkpoint_claim(job) is None:
        return
    for field, name in _CLAIM_FIELDS.items():
        old, new = getattr(before.spec.checkpoint, field, None), getattr(job.spec.checkpoint, field, None)
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
        match_conditions=(("wishes-changed", "oldObject == null || object.spec != oldObject.spec"),),
    ),
)
