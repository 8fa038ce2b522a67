"""Annotations that a pod template inherits from the objects that own it. Pure."""

from __future__ import annotations

from typing import Any

from skysail.claims.requirements import annotations as requirements
from skysail.claims.requirements.types import OwnerLink
from skysail.kube.admission.hooks import Manifest


def missing(template: Manifest, owners: list[Manifest]) -> dict[str, str]:
    """Return the annotations of the owners, nearest first, that the template inherits and does not have yet."""
    own, labels = of(template), metadata(template).get("labels") or {}
    inherited = requirements.inherit([_link(template, "Pod"), *(_link(owner, "Job") for owner in owners)])
    return {name: value for name, value in inherited.items() if name not in own and name not in labels}


def inheritable(owner: Manifest) -> dict[str, str]:
    """Return the annotations of an owner that its pods may inherit."""
    return requirements.inherit([_link(owner, "Job")])


def patch(template: Manifest, added: dict[str, str], path: str) -> list[Manifest]:
    """Return the patch that adds annotations to the template at this path."""
    if not added:
        return []
    if not metadata(template):
        return [{"op": "add", "path": f"{path}/metadata", "value": {"annotations": added}}]
    return [{"op": "add", "path": f"{path}/metadata/annotations", "value": {**of(template), **added}}]


def of(object_: Manifest) -> dict[str, str]:
    """Return the annotations of an object or of a template."""
    found: dict[str, str] = metadata(object_).get("annotations") or {}
    return found


def metadata(object_: Manifest) -> dict[str, Any]:
    return object_.get("metadata") or {}


def _link(object_: Manifest, kind: str) -> OwnerLink:
    return OwnerLink(
        kind=kind,
        name=str(metadata(object_).get("name") or ""),
        annotations=of(object_),
        labels=metadata(object_).get("labels") or {},
    )
