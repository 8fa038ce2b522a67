"""Removal of finalizers of replaced operators, which would block deletion for ever. Pure."""

from __future__ import annotations

from skysail.base.names import LegacyFinalizer
from skysail.core.actions import SetFinalizers
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import Resource

_FOREIGN = frozenset(LegacyFinalizer)


def remove_legacy_finalizers(resource: Resource, object_: Object) -> tuple[SetFinalizers, ...]:
    """Return the action that removes these finalizers from an object that is being deleted, if it has any."""
    kept = tuple(finalizer for finalizer in object_.metadata.finalizers if finalizer not in _FOREIGN)
    return () if kept == object_.metadata.finalizers else (SetFinalizers(resource, object_, kept),)
