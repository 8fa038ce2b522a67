"""Validating webhooks of models. Pure.

They write nothing, so a repeated call is harmless. Only errors that a change introduces are rejected: an object that
was invalid before can still be labelled, scaled and deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec

from skysail.base.names import Annotation
from skysail.kinds.serving.admission.validation import validate, warnings_for
from skysail.kinds.serving.api.types import KINDS, Model
from skysail.kinds.serving.spec.config import ServingConfig
from skysail.kinds.serving.spec.desired import Autoscaling, FixedScale, desired_model
from skysail.kube.admission.hooks import AdmissionResponse, Hook, Manifest
from skysail.kube.api import resource_validation
from skysail.kube.api.crd import CustomKind

_MAX_ERRORS = 10
# An object with generateName has no name yet.
_UNNAMED = "unnamed"
_SPEC_CHANGED = (
    "oldObject == null || object.spec != oldObject.spec "
    "|| has(object.metadata.annotations) != has(oldObject.metadata.annotations) "
    "|| (has(object.metadata.annotations) && object.metadata.annotations != oldObject.metadata.annotations)"
)


def hooks(config: ServingConfig) -> tuple[Hook, ...]:
    return tuple(_hook(kind, config) for kind in KINDS)


def admit(kind: CustomKind, config: ServingConfig, object_: Manifest, old: Manifest | None) -> AdmissionResponse:
    """Validate a model. Type errors are left to the schema, which names the field."""
    model, previous = _read(kind, object_), _read(kind, old or {})
    if model is None or model.metadata.is_deleting:
        return AdmissionResponse()
    known = validate(previous, config) if previous is not None else ()
    errors = [sentence for sentence in validate(model, config) if sentence not in known]
    if previous is not None:
        errors += _immutable_fields(previous, model, config)
    if errors:
        return AdmissionResponse(denied=" ".join(errors[:_MAX_ERRORS]))
    warnings = _change_warnings(previous, model, config) if previous is not None else ()
    return AdmissionResponse(warnings=(*warnings_for(model, config), *warnings))


def _read(kind: CustomKind, object_: Manifest) -> Model | None:
    try:
        model = msgspec.convert(object_, kind.struct)
    except msgspec.ValidationError:
        return None
    assert isinstance(model, Model)
    name = model.metadata.name or _UNNAMED
    return msgspec.structs.replace(model, metadata=msgspec.structs.replace(model.metadata, name=name))


def _immutable_fields(previous: Model, model: Model, config: ServingConfig) -> Iterator[str]:
    """Reject changes of immutable PVC fields: accepting a change without an effect would mislead."""
    old, new = desired_model(previous, config).storage, desired_model(model, config).storage
    if old is not None and new is not None and old.is_shared != new.is_shared:
        yield (
            f"Annotation {Annotation.ACCESS_MODE} is immutable: create another MLModel, under another name while this "
            "one serves."
        )


def _change_warnings(previous: Model, model: Model, config: ServingConfig) -> tuple[str, ...]:
    """Return warnings about a change: its missing effects and its side effects."""
    return (
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


def _hook(kind: CustomKind, config: ServingConfig) -> Hook:
    resource = kind.resource
    return Hook(
        name=resource.plural,
        admit=partial(admit, kind, config),
        rules=(
            {
                "apiGroups": [resource.group],
                "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE"],
                "resources": [resource.plural],
                "scope": "Namespaced",
            },
        ),
        match_conditions=(("spec-changed", _SPEC_CHANGED),),
    )
