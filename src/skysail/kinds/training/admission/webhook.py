"""Validating webhooks of TrainingJobs and ModalJobs. Pure. All defaults are in the schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from skysail.kinds.training.admission.validation import validate
from skysail.kinds.training.admission.warnings import warnings_for
from skysail.kinds.training.api.modal_job import MODAL_JOB
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kinds.training.children import modal_job, naming
from skysail.kinds.training.children.volumes import checkpoint_pvc
from skysail.kube.admission.hooks import Manifest
from skysail.kube.admission.validating_hook import Checks, validating_hook

_AMOUNTS = (".limits", ".requests")
_BYTES = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>[kKmMgGtTpP])i?[bB]")
_CLAIM_FIELDS = {"size": "size", "storage_class_name": "storageClassName", "access_mode": "accessMode"}


def _invalid_quantities(manifest: Manifest) -> Iterator[str]:
    """Yield an error for each quantity with a unit that Kubernetes does not have: 4GB may mean 4Gi or 4G."""
    return _invalid_units("spec", manifest.get("spec"))


def _invalid_units(where: str, part: Any) -> Iterator[str]:
    if not isinstance(part, Mapping):
        return
    for name, value in part.items():
        match = _BYTES.fullmatch(value) if isinstance(value, str) and where.endswith(_AMOUNTS) else None
        if match is not None:
            number, unit = match["number"], match["unit"].upper()
            yield f"{where}.{name} is {value}, which is not a quantity: write {number}{unit}i or {number}{unit}."
        yield from _invalid_units(f"{where}.{name}", value)


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
    validating_hook(
        TRAINING_JOB,
        Checks(
            validate=validate,
            immutable_fields=_immutable_fields,
            warnings=warnings_for,
            type_errors=_invalid_quantities,
        ),
    ),
    validating_hook(
        MODAL_JOB,
        Checks(
            validate=lambda job: modal_job.errors(job.spec),
            immutable_fields=lambda _, __: (),
            warnings=lambda _, __: (),
        ),
    ),
)
