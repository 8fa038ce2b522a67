"""Validating webhook of a custom kind. Pure.

It changes nothing, so a repeated call is harmless. Only errors that a change adds are rejected: an object that was
invalid before can still be suspended, scaled, labelled and deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from skysail.kube.admission.hooks import AdmissionResponse, Hook, Manifest, admission_rule
from skysail.kube.api.crd import CustomKind
from skysail.kube.api.objects import Object

SPEC_CHANGED = "oldObject == null || object.spec != oldObject.spec"

_MAX_ERRORS = 10
# An object with generateName has no name yet.
_UNNAMED = "unnamed"

T = TypeVar("T", bound=Object)


class Checks(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Checks of one kind. Each error and warning is a sentence with the fix.

    - `validate`: errors of an object.
    - `immutable_fields`: errors of a change from an old to a new object.
    - `warnings`: warnings about a new object; the old object is None on creation.
    - `type_errors`: errors of an object that cannot be decoded, for cases that the schema explains badly.
    """

    validate: Callable[[T], tuple[str, ...]]
    immutable_fields: Callable[[T, T], Iterable[str]]
    warnings: Callable[[T | None, T], tuple[str, ...]]
    type_errors: Callable[[Manifest], Iterable[str]] = lambda _: ()


def validating_hook(kind: CustomKind, checks: Checks[Any], match_condition: str = SPEC_CHANGED) -> Hook:
    """Return the hook of a kind. The API server calls it if the CEL condition holds."""
    return Hook(
        name=kind.resource.plural,
        admit=partial(_admit, kind, checks),
        rules=(admission_rule(kind.resource.group, kind.resource.plural, "CREATE", "UPDATE"),),
        match_conditions=(("spec-changed", match_condition),),
    )


def _admit(kind: CustomKind, checks: Checks[Any], object_: Manifest, old: Manifest | None) -> AdmissionResponse:
    """Return the verdict. Type errors are left to the schema, which names the field."""
    new, previous = _decode(kind, object_), _decode(kind, old or {})
    if new is None:
        return AdmissionResponse(denied=" ".join(checks.type_errors(object_)) or None)
    if new.metadata.is_deleting:
        return AdmissionResponse()
    known = checks.validate(previous) if previous is not None else ()
    errors = [error for error in checks.validate(new) if error not in known]
    if previous is not None:
        errors += checks.immutable_fields(previous, new)
    if errors:
        return AdmissionResponse(denied=" ".join(errors[:_MAX_ERRORS]))
    return AdmissionResponse(warnings=checks.warnings(previous, new))


def _decode(kind: CustomKind, manifest: Manifest) -> Object | None:
    try:
        object_ = msgspec.convert(manifest, kind.struct)
    except msgspec.ValidationError:
        return None
    name = object_.metadata.name or _UNNAMED
    return msgspec.structs.replace(object_, metadata=msgspec.structs.replace(object_.metadata, name=name))
