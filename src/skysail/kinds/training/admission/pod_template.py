"""What a podTemplate may not touch, because pods find each other and their files by it. Pure.

What is ours is read from the pods as they would be without the template, so that there is no second list of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from skysail.kinds.training.api.training_job import NewestCheckpoint, TrainingJob
from skysail.kinds.training.children.manifests import children
from skysail.kinds.training.children.pod_template import CONTAINER
from skysail.kinds.training.children.progress_endpoint import Reporting
from skysail.kube.api.fields import PodTemplate

CHECKPOINTS = "checkpoints"
_WHERE = "spec.podTemplate.spec"
# Choices, not facts: whoever sets one of these knows better.
_FREE = frozenset(
    {
        "PYTHONUNBUFFERED",
        "PET_NPROC_PER_NODE",
        "PET_MAX_RESTARTS",
        "GRPC_FAIL_FAST",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION",
    }
)
# The Job controller knows its pods by these.
_LABELS = frozenset({"job-name", "controller-uid"})
_LABELS_OF = "batch.kubernetes.io/"
# With all that a pod may be told, whether or not it is told it now.
_SOMETHING = NewestCheckpoint(path="/", step=0)
_SOMEWHERE = Reporting(server="", authority="")


class Ground(msgspec.Struct, frozen=True):
    """What is ours in the pods of a job: labels, variables, names of volumes, and mounts as (path, volume)."""

    labels: frozenset[str]
    variables: frozenset[str]
    volumes: frozenset[str]
    mounts: frozenset[tuple[str, str]]


def ground(job: TrainingJob) -> Ground:
    bare = msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, pod_template=None))
    templates = [manifest["spec"]["template"] for _, manifest in children(bare, 0, _SOMETHING, _SOMEWHERE).jobs]
    containers = [container for template in templates for container in template["spec"]["containers"]]
    return Ground(
        labels=frozenset(label for template in templates for label in template["metadata"]["labels"]),
        variables=frozenset(variable["name"] for container in containers for variable in container["env"]) - _FREE,
        volumes=frozenset(volume["name"] for template in templates for volume in template["spec"]["volumes"]),
        mounts=frozenset(
            (mount["mountPath"], mount["name"]) for container in containers for mount in container["volumeMounts"]
        ),
    )


def trespasses(template: PodTemplate | None, ours: Ground) -> Iterator[str]:
    if template is None:
        return
    for label in sorted(template.metadata.labels):
        if label in ours.labels or label in _LABELS or label.startswith(_LABELS_OF):
            yield f"spec.podTemplate.metadata.labels has {label}, by which pods are found: remove it."
    yield from _pod(template.spec)
    yield from _volumes(template.spec, ours)
    yield from _containers(template.spec, ours)


def _pod(spec: Mapping[str, Any]) -> Iterator[str]:
    for field in ("hostname", "subdomain"):
        if spec.get(field) is not None:
            yield f"{_WHERE}.{field} is {spec[field]}, but pods find each other by names that Skysail gives: remove it."
    if (spec.get("restartPolicy") or "Never") != "Never":
        yield (
            f"{_WHERE}.restartPolicy is {spec['restartPolicy']}: remove it. Whether a failed attempt begins anew is "
            "told by spec.restartPolicy."
        )


def _volumes(spec: Mapping[str, Any], ours: Ground) -> Iterator[str]:
    yield from _unless_list(spec, "volumes", _WHERE)
    yield from _twice(spec, "volumes")
    for place, name in _named(spec, "volumes", "name"):
        if name in ours.volumes:
            yield f"{_WHERE}.volumes[{place}] is named {name}, as a volume of Skysail's is: choose another name."


def _containers(spec: Mapping[str, Any], ours: Ground) -> Iterator[str]:
    yield from _unless_list(spec, "containers", _WHERE)
    yield from _twice(spec, "containers")
    for place, name in _named(spec, "initContainers", "name"):
        if name == CONTAINER:
            yield f"{_WHERE}.initContainers[{place}] is named {name}, as the one that trains is: choose another name."
    for place, container in enumerate(_items(spec, "containers")):
        if not isinstance(container, Mapping) or not isinstance(container.get("name"), str):
            yield (
                f"{_WHERE}.containers[{place}] has no name: the container that trains is {CONTAINER}, any other name "
                "is one of your own."
            )
        elif container["name"] == CONTAINER:
            yield from _trainer(container, ours, f"{_WHERE}.containers[{place}]")


def _trainer(container: Mapping[str, Any], ours: Ground, where: str) -> Iterator[str]:
    for field in ("env", "volumeMounts"):
        yield from _unless_list(container, field, where)
    for place, name in _named(container, "env", "name"):
        if name in ours.variables:
            yield f"{where}.env[{place}] sets {name}, which Skysail sets for each pod: remove it, or rename it."
    taken = dict(ours.mounts)
    for place, path in _named(container, "volumeMounts", "mountPath"):
        if path in taken:
            yield f"{where}.volumeMounts[{place}] is at {path}, where {taken[path]} is mounted: choose another path."


def _unless_list(part: Mapping[str, Any], field: str, where: str) -> Iterator[str]:
    """Null would take ours away, and anything else would replace them."""
    if field in part and not isinstance(part[field], list):
        yield f"{where}.{field} is no list: write one, which is added to what Skysail has there, or remove it."


def _twice(spec: Mapping[str, Any], field: str) -> Iterator[str]:
    seen = set()
    for place, name in _named(spec, field, "name"):
        if name in seen:
            yield f"{_WHERE}.{field}[{place}] is named {name}, as another one before it is: choose another name."
        seen.add(name)


def _named(part: Mapping[str, Any], field: str, key: str) -> Iterator[tuple[int, str]]:
    for place, item in enumerate(_items(part, field)):
        if isinstance(item, Mapping) and isinstance(item.get(key), str):
            yield place, item[key]


def _items(part: Mapping[str, Any], field: str) -> list[Any]:
    items = part.get(field)
    return items if isinstance(items, list) else []
