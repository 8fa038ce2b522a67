"""What the API server asks before it stores a model. Pure.

Nothing is written here, so asking twice is the same as asking once. Only what a change makes wrong is refused: an
object that was wrong before can still be labelled, scaled and let go.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec

from skysail.kinds.serving.admission.validation import cautions, objections
from skysail.kinds.serving.api.types import KINDS, Model
from skysail.kinds.serving.spec.config import Terms
from skysail.kinds.serving.spec.desired import Auto, Fixed, serving
from skysail.kube.admission.hooks import Hook, Manifest, Verdict
from skysail.kube.api import resource_validation
from skysail.kube.api.crd import CustomKind

_MOST = 10
# An object that gets its name from the server has none yet.
_UNNAMED = "unnamed"
_WISHES_CHANGED = (
    "oldObject == null || object.spec != oldObject.spec "
    "|| has(object.metadata.annotations) != has(oldObject.metadata.annotations) "
    "|| (has(object.metadata.annotations) && object.metadata.annotations != oldObject.metadata.annotations)"
)


def hooks(terms: Terms) -> tuple[Hook, ...]:
    return tuple(_hook(kind, terms) for kind in KINDS)


def admit(kind: CustomKind, terms: Terms, object_: Manifest, old: Manifest | None) -> Verdict:
    """What is not even of the right types is left to the schema, which names the field."""
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
    """What the claim was made with. Nobody can change it, and a change that does nothing would be a lie."""
    old, new = serving(before, terms).storage, serving(model, terms).storage
    if old is not None and new is not None and old.is_shared != new.is_shared:
        yield (
            "The access mode cannot be changed. The claim is made once: create the MLModel anew, under another name "
            "while this one serves."
        )


def _told(before: Model, model: Model, terms: Terms) -> tuple[str, ...]:
    """What a change does not do, or does besides."""
    return (*_pinned(before, model, terms), *_kept(before, model, terms), *_fewer(before, model, terms))


def _pinned(before: Model, model: Model, terms: Terms) -> Iterator[str]:
    """Whoever rolled back may have forgotten it when the mend is there."""
    number, name = model.spec.rollback_to, model.metadata.name
    if number is not None and serving(before, terms).want != serving(model, terms).want:
        yield (
            f"This change is not served: spec.rollbackTo holds the model at revision {number}. Remove that, or say "
            f"`skysail rollback {name} -n {model.metadata.namespace or 'default'} --undo`."
        )


def _kept(before: Model, model: Model, terms: Terms) -> Iterator[str]:
    """A volume only grows. Less than it has is no mistake: so somebody takes back what it could not grow to."""
    old, new = serving(before, terms).storage, serving(model, terms).storage
    there, wanted = (
        resource_validation.number(old.size if old else None),
        resource_validation.number(new.size if new else None),
    )
    if new is not None and there is not None and wanted is not None and wanted < there:
        yield f"A volume that has more than {new.size} keeps it: spec.storageSize only counts where it is larger."


def _fewer(before: Model, model: Model, terms: Terms) -> Iterator[str]:
    """What an autoscaler had found to be needed is not what the spec says of the time after it."""
    old, new, there = serving(before, terms).scale, serving(model, terms).scale, before.status.replicas
    if isinstance(old, Auto) and isinstance(new, Fixed) and new.replicas < there:
        yield (
            f"Without autoscale, {new.replicas} of {there} servers are left, at once: set spec.minReplicas to as many "
            "as the load needs."
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
