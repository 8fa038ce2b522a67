"""Validating webhooks of models. Pure.

They write nothing, so a repeated call is harmless. Only errors that a change introduces are rejected: an object that
was invalid before can still be labelled, scaled and deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec

from skysail.base.names import Annotation
from skysail.kinds.serving.admission.validation import cautions, objections
from skysail.kinds.serving.api.types import KINDS, Model
from skysail.kinds.serving.spec.config import Terms
from skysail.kinds.serving.spec.desired import Auto, Fixed, serving
from skysail.kube.admission.hooks import Hook, Manifest, Verdict
from skysail.kube.api import resource_validation
from skysail.kube.api.crd import CustomKind

_MOST = 10
# An object with generateName has no name yet.
_UNNAMED = "unnamed"
_WISHES_CHANGED = (
    "oldObject == null || object.spec != oldObject.spec "
    "|| has(object.metadata.annotations) != has(oldObject.metadata.annotations) "
    "|| (has(object.metadata.annotations) && object.metadata.annotations != oldObject.metadata.annotations)"
)


def hooks(terms: Terms) -> tuple[Hook, ...]:
    return tuple(_hook(kind, terms) for kind in KINDS)


def admit(kind: CustomKind, terms: Terms, object_: Manifest, old: Manifest | None) -> Verdict:
    """Validate a model. Type errors are left to the schema, which names the field."""
    model, before = _read(kind, object_), _read(kind, old or {})
    if model is None or model.metadata.is_deleting:
        return Verdict()
    known = objections(before, terms) if before is not None else ()
    wrong = [sentence for sentence in objections(model, terms) if sentence not in known]
    if before is not None:
        wrong += _fixed(before, model, terms)
    if wrong:
        return Verdict(refused=" ".join(wrong[:_MOST]))
    told = _told(before, model, terms) if before is not None else ()
    return Verdict(warnings=(*cautions(model, terms), *told))


def _read(kind: CustomKind, object_: Manifest) -> Model | None:
    try:
        model = msgspec.convert(object_, kind.struct)
    except msgspec.ValidationError:
        return None
    assert isinstance(model, Model)
    name = model.metadata.name or _UNNAMED
    return msgspec.structs.replace(model, metadata=msgspec.structs.replace(model.metadata, name=name))


def _fixed(before: Model, model: Model, terms: Terms) -> Iterator[str]:
    """Reject changes of immutable PVC fields: accepting a change without an effect would mislead."""
    old, new = serving(before, terms).storage, serving(model, terms).storage
    if old is not None and new is not None and old.is_shared != new.is_shared:
        yield (
            f"Annotation {Annotation.ACCESS_MODE} is immutable: create another MLModel, under another name while this "
            "one serves."
        )


def _told(before: Model, model: Model, terms: Terms) -> tuple[str, ...]:
    """Return warnings about a change: its missing effects and its side effects."""
    return (*_pinned(before, model, terms), *_kept(before, model, terms), *_fewer(before, model, terms))


def _pinned(before: Model, model: Model, terms: Terms) -> Iterator[str]:
    """Warn if a rollback is still in effect, which users may have forgotten when they deploy the fix."""
    number, name = model.spec.rollback_to, model.metadata.name
    if number is not None and serving(before, terms).want != serving(model, terms).want:
        yield (
            f"This change is not served, because spec.rollbackTo pins revision {number}: remove the field, or run "
            f"`skysail rollback {name} -n {model.metadata.namespace or 'default'} --undo`."
        )


def _kept(before: Model, model: Model, terms: Terms) -> Iterator[str]:
    """Warn if the size shrinks: PVCs cannot. A smaller size is accepted, because it reverts a failed expansion."""
    old, new = serving(before, terms).storage, serving(model, terms).storage
    there, wanted = (
        resource_validation.number(old.size if old else None),
        resource_validation.number(new.size if new else None),
    )
    if new is not None and there is not None and wanted is not None and wanted < there:
        yield f"spec.storageSize {new.size} has no effect on a larger PVC, because PVCs cannot shrink."


def _fewer(before: Model, model: Model, terms: Terms) -> Iterator[str]:
    """Warn if disabling autoscale leaves fewer servers than the autoscaler had chosen."""
    old, new, there = serving(before, terms).scale, serving(model, terms).scale, before.status.replicas
    if isinstance(old, Auto) and isinstance(new, Fixed) and new.replicas < there:
        yield (
            f"Without spec.autoscale, only {new.replicas} of {there} servers stay: set spec.minReplicas to the number "
            "that the load needs."
        )


def _hook(kind: CustomKind, terms: Terms) -> Hook:
    resource = kind.resource
    return Hook(
        name=resource.plural,
        admit=partial(admit, kind, terms),
        rules=(
            {
                "apiGroups": [resource.group],
                "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE"],
                "resources": [resource.plural],
                "scope": "Namespaced",
            },
        ),
        match_conditions=(("wishes-changed", _WISHES_CHANGED),),
    )
