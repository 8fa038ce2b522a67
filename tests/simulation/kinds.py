"""What the server knows of a kind beyond its name: which rules of the API hold for it."""

from __future__ import annotations

from typing import Any

import msgspec

from skysail.kube.api import resources
from skysail.kube.api.resources import (
    CRD,
    DEPLOYMENT,
    HORIZONTAL_POD_AUTOSCALER,
    JOB,
    LEASE,
    NAMESPACE,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SERVICE,
    Resource,
)

_WITH_STATUS = {
    CRD,
    DEPLOYMENT,
    HORIZONTAL_POD_AUTOSCALER,
    JOB,
    NAMESPACE,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SERVICE,
}
_WITH_GENERATION = {POD, JOB, DEPLOYMENT, CRD, resources.MUTATING_WEBHOOK}
_BUILT_IN_GROUPS = {"", "apps", "autoscaling", "batch", "policy"}


class Kind(msgspec.Struct, frozen=True):
    """A served resource. Custom ones differ from built-in ones in a few details that clients see."""

    resource: Resource
    custom: bool
    has_status: bool
    has_generation: bool

    @property
    def needs_version_to_replace(self) -> bool:
        """Built-in kinds mostly take a PUT without a resourceVersion; these do not."""
        return self.custom or self.resource == LEASE


def of(resource: Resource, *, has_status: bool = True) -> Kind:
    if resource.group in _BUILT_IN_GROUPS or resource.group.endswith(".k8s.io"):
        return Kind(resource, False, resource in _WITH_STATUS, resource in _WITH_GENERATION)
    return Kind(resource, True, has_status, True)


def built_in() -> list[Kind]:
    return [of(row) for row in vars(resources).values() if isinstance(row, Resource)]


def defined_by(crd: dict[str, Any]) -> list[Kind]:
    """The kinds that a CustomResourceDefinition brings, one per served version."""
    spec = crd["spec"]
    names = spec["names"]
    return [
        of(
            Resource(spec["group"], version["name"], names["plural"], names["kind"], spec["scope"] == "Namespaced"),
            has_status="status" in version.get("subresources", {}),
        )
        for version in spec["versions"]
        if version["served"]
    ]
