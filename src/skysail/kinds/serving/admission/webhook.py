"""Validating webhooks of models. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from skysail.base.names import Annotation
from skysail.kinds.serving.admission.validation import validate, warnings_for
from skysail.kinds.serving.api.types import KINDS, Model
from skysail.kinds.serving.spec.config import ServingConfig
from skysail.kinds.serving.spec.desired import Autoscaling, FixedScale, desired_model
from skysail.kube.admission.hooks import Hook
from skysail.kube.admission.validating_hook import SPEC_CHANGED, Checks, validating_hook
from skysail.kube.api import resource_validation

_SPEC_CHANGED = (
    f"{SPEC_CHANGED} || has(object.metadata.annotations) != has(oldObject.metadata.annotations) "
    "|| (has(object.metadata.annotations) && object.metadata.annotations != oldObject.metadata.annotations)"
)


def hooks(config: ServingConfig) -> tuple[Hook, ...]:
    checks = Checks(
        validate=partial(validate, config=config),
        immutable_fields=partial(_immutable_fields, config=config),
        warnings=partial(_warnings, config=config),
    )
    return tuple(validating_hook(kind, checks, _SPEC_CHANGED) for kind in KINDS)


def _immutable_fields(previous: Model, model: Model, config: ServingConfig) -> Iterator[str]:
    """Reject changes of immutable PVC fields: accepting a change without an effect would mislead."""
    old, new = desired_model(previous, config).storage, desired_model(model, config).storage
    if old is not None and new is not None and old.is_shared != new.is_shared:
        yield (
            f"Annotation {Annotation.ACCESS_MODE} is immutable: create another MLModel, under another name while this "
            "one serves."
        )


def _warnings(previous: Model | None, model: Model, config: ServingConfig) -> tuple[str, ...]:
    """Return warnings about a model and about a change: its missing effects and its side effects."""
    if previous is None:
        return warnings_for(model, config)
    return (
        *warnings_for(model, config),
        *_pinned_warning(previous, model, config),
        *_shrink_warning(previous, model, config),
        *_scale_down_warning(previous, model, config),
    )


def _pinned_warning(previous: Model, model: Model, config: ServingConfig) -> Iterator[str]:
    """Warn if a rollback is still in effect, which users may have forgotten when they deploy the fix."""
    number, name = model.spec.rollback_to, model.metadata.name
    if number is not None and desired_model(previous, config).want != desired_model(model, config).want:
        yield (
            f"This change is not served, because spec.rollbackTo pins revision {number}: remove the field, or run "
            f"`skysail rollback {name} -n {model.metadata.namespace or 'default'} --undo`."
        )


def _shrink_warning(previous: Model, model: Model, config: ServingConfig) -> Iterator[str]:
    """Warn if the size shrinks: PVCs cannot. A smaller size is accepted, because it reverts a failed expansion."""
    old, new = desired_model(previous, config).storage, desired_model(model, config).storage
    there, requested = (
        resource_validation.parse_quantity(old.size if old else None),
        resource_validation.parse_quantity(new.size if new else None),
    )
    if new is not None and there is not None and requested is not None and requested < there:
        yield f"spec.storageSize {new.size} has no effect on a larger PVC, because PVCs cannot shrink."


def _scale_down_warning(previous: Model, model: Model, config: ServingConfig) -> Iterator[str]:
    """Warn if disabling autoscale leaves fewer servers than the autoscaler had chosen."""
    old, new, there = (
        desired_model(previous, config).scale,
        desired_model(model, config).scale,
        previous.status.replicas,
    )
    if isinstance(old, Autoscaling) and isinstance(new, FixedScale) and new.replicas < there:
        yield (
            f"Without spec.autoscale, only {new.replicas} of {there} servers stay: set spec.minReplicas to the number "
            "that the load needs."
        )
