"""Validation errors of a TrainingJob that its schema accepts: each a sentence with field, value and fix. Pure.

Admission rejects the object with these sentences. If admission was bypassed, no attempt starts and the status has the
same sentences.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any

import msgspec

from skysail.kinds.training.admission import pod_template
from skysail.kinds.training.admission.pod_template import CHECKPOINTS, ReservedFields
from skysail.kinds.training.api.training_job import TrainingJob, TrainingJobSpec
from skysail.kinds.training.children import naming
from skysail.kinds.training.children.replica_groups import GPU
from skysail.kube.api import resource_validation, text_validation
from skysail.kube.api.fields import ResourceRequirements

_KINDS_OF_VALUE = {type(None): "null", list: "a list", dict: "an object"}
_MAX_VALUE_LENGTH = 60
# Mount of the service account token.
_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 (a folder)


def validate(job: TrainingJob) -> tuple[str, ...]:
    """Return the validation errors.

    Returns none for a job of another controller, whose rules are unknown.
    """
    if job.spec.managed_by is not None:
        return ()
    reserved = pod_template.reserved_fields(job)
    return (
        *text_validation.nul_errors("spec", msgspec.to_builtins(job.spec)),
        *_hyperparameters(job.spec),
        *_elastic(job.spec),
        *_amounts(job.spec),
        *_checkpoint_directory(job.spec, reserved),
        *pod_template.validate(job.spec.pod_template, reserved),
    )


def _hyperparameters(spec: TrainingJobSpec) -> Iterator[str]:
    taken: dict[str, str] = {}
    for key, value in sorted(spec.hyperparameters.items()):
        kind = _KINDS_OF_VALUE.get(type(value))
        if kind is not None:
            yield f"spec.hyperparameters.{key} is {kind} ({_excerpt(value)}): write a string, a number or a boolean."
        if not key:
            yield "spec.hyperparameters has an empty key: give it a name, such as lr."
            continue
        name = naming.variable(key)
        if name in taken:
            yield (
                f"spec.hyperparameters.{taken[name]} and spec.hyperparameters.{key} have the same environment variable "
                f"{name}: rename one of them."
            )
        taken.setdefault(name, key)


def _elastic(spec: TrainingJobSpec) -> Iterator[str]:
    if spec.elastic is not None and spec.framework != "pytorch":
        yield (
            f"spec.elastic requires spec.framework pytorch, and spec.framework is {spec.framework}: remove "
            "spec.elastic. A change of spec.workers then starts a new attempt."
        )


def _amounts(spec: TrainingJobSpec) -> Iterator[str]:
    for where, resources in _resources(spec):
        yield from resource_validation.validate(where, resources)
    desired, shared = spec.gpu_per_worker, spec.resources or ResourceRequirements()
    for kind, some in (("limits", shared.limits), ("requests", shared.requests)):
        amount = resource_validation.parse_quantity(some.get(GPU))
        if desired and amount is not None and amount != desired:
            yield (
                f"spec.gpuPerWorker is {desired}, but spec.resources.{kind} has {GPU}: {some[GPU]}: make them "
                "equal, or "
                "remove one."
            )


def _resources(spec: TrainingJobSpec) -> Iterator[tuple[str, ResourceRequirements]]:
    replica_roles = spec.roles
    rows = [("spec.resources", spec.resources)]
    if replica_roles is not None:
        named = {
            "chief": replica_roles.chief,
            "parameterServers": replica_roles.parameter_servers,
            "evaluator": replica_roles.evaluator,
        }
        rows += [
            (f"spec.roles.{name}.resources", role_spec.resources)
            for name, role_spec in named.items()
            if role_spec is not None
        ]
    yield from ((where, resources) for where, resources in rows if resources is not None)


def _checkpoint_directory(spec: TrainingJobSpec, reserved: ReservedFields) -> Iterator[str]:
    """Reject overlapping mounts: a nested mount hides files, and cannot be created inside a read-only one."""
    if not spec.checkpoint_dir:
        return
    if ":" in spec.checkpoint_dir:
        yield f"spec.checkpointDir is {spec.checkpoint_dir}: a mount path must not contain a colon, so remove it."
    directory = posixpath.normpath("/" + spec.checkpoint_dir.lstrip("/"))
    others = [path for path, volume in reserved.mounts if volume != CHECKPOINTS]
    for other in ("/", _TOKEN, *sorted(others)):
        if directory == other or _is_inside(other, directory) or (other != "/" and _is_inside(directory, other)):
            yield (
                f"spec.checkpointDir is {spec.checkpoint_dir}, which overlaps the mount at {other}: choose another "
                "directory, such as /checkpoints."
            )
            return


def _is_inside(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _excerpt(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH]}…"
