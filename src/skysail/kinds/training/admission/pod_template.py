"""Validation of podTemplate: fields that Skysail sets because pods find each other and their files by them. Pure.

The reserved names are read from pods rendered without the template, so that there is no second list of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from skysail.kinds.training.api.training_job import LatestCheckpoint, TrainingJob
from skysail.kinds.training.children.manifests import build_children
from skysail.kinds.training.children.pod_template import CONTAINER
from skysail.kinds.training.children.progress_endpoint import ProgressEndpoint
from skysail.kube.api.fields import PodTemplate

CHECKPOINTS = "checkpoints"
_WHERE = "spec.podTemplate.spec"
# Defaults that a user may override.
_FREE = frozenset(
    {
        "PYTHONUNBUFFERED",
        "PET_NPROC_PER_NODE",
        "PET_MAX_RESTARTS",
        "GRPC_FAIL_FAST",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION",
    }
)
# Labels by which the Job controller selects its pods.
_LABELS = frozenset({"job-name", "controller-uid"})
_LABELS_OF = "batch.kubernetes.io/"
# Render the reserved names with a checkpoint and a progress server, so that all optional variables are included.
_SOMETHING = LatestCheckpoint(path="/", step=0)
_SOMEWHERE = ProgressEndpoint(server="", authority="")


class ReservedFields(msgspec.Struct, frozen=True):
    """Names that Skysail uses in the pods of a job: labels, variables, volumes, and mounts as (path, volume)."""

    labels: frozenset[str]
    variables: frozenset[str]
    volumes: frozenset[str]
    mounts: frozenset[tuple[str, str]]


def reserved_fields(job: TrainingJob) -> ReservedFields:
    bare = msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, pod_template=None))
    templates = [manifest["spec"]["template"] for _, manifest in build_children(bare, 0, _SOMETHING, _SOMEWHERE).jobs]
    containers = [container for template in templates for container in template["spec"]["containers"]]
    return ReservedFields(
        labels=frozenset(label for template in templates for label in template["metadata"]["labels"]),
        variables=frozenset(variable["name"] for container in containers for variable in container["env"]) - _FREE,
        volumes=frozenset(volume["name"] for template in templates for volume in template["spec"]["volumes"]),
        mounts=frozenset(
            (mount["mountPath"], mount["name"]) for container in containers for mount in container["volumeMounts"]
        ),
    )


def validate(template: PodTemplate | None, ours: ReservedFields) -> Iterator[str]:
    if template is None:
        return
    for label in sorted(template.metadata.labels):
        if label in ours.labels or label in _LABELS or label.startswith(_LABELS_OF):
            yield f"spec.podTemplate.metadata.labels has {label}, which is reserved for selecting pods: remove it."
    yield from _pod(template.spec)
    yield from _volumes(template.spec, ours)
    yield from _containers(template.spec, ours)


def _pod(spec: Mapping[str, Any]) -> Iterator[str]:
    for field in ("hostname", "subdomain"):
        if spec.get(field) is not None:
            yield f"{_WHERE}.{field} is {spec[field]}, but Skysail sets it so that pods find each other: remove it."
    if (spec.get("restartPolicy") or "Never") != "Never":
        yield (
            f"{_WHERE}.restartPolicy is {spec['restartPolicy']}: remove it. spec.restartPolicy decides whether a "
            "failed attempt is retried."
        )


def _volumes(spec: Mapping[str, Any], ours: ReservedFields) -> Iterator[str]:
    yield from _unless_list(spec, "volumes", _WHERE)
    yield from _twice(spec, "volumes")
    for place, name in _named(spec, "volumes", "name"):
        if name in ours.volumes:
            yield f"{_WHERE}.volumes[{place}] is named {name}, which is a volume of Skysail: choose another name."


def _containers(spec: Mapping[str, Any], ours: ReservedFields) -> Iterator[str]:
    yield from _unless_list(spec, "containers", _WHERE)
    yield from _twice(spec, "containers")
    for place, name in _named(spec, "initContainers", "name"):
        if name == CONTAINER:
            yield f"{_WHERE}.initContainers[{place}] is named {name}, like the training container: choose another name."
    for place, container in enumerate(_items(spec, "containers")):
        if not isinstance(container, Mapping) or not isinstance(container.get("name"), str):
            yield (
                f"{_WHERE}.containers[{place}] has no name: write {CONTAINER} for the training container, or any other "
                "name for a sidecar."
            )
        elif container["name"] == CONTAINER:
            yield from _trainer(container, ours, f"{_WHERE}.containers[{place}]")


def _trainer(container: Mapping[str, Any], ours: ReservedFields, where: str) -> Iterator[str]:
    for field in ("env", "volumeMounts"):
        yield from _unless_list(container, field, where)
    for place, name in _named(container, "env", "name"):
        if name in ours.variables:
            yield f"{where}.env[{place}] sets {name}, which Skysail sets for each pod: remove or rename it."
    taken = dict(ours.mounts)
    for place, path in _named(container, "volumeMounts", "mountPath"):
        if path in taken:
            yield f"{where}.volumeMounts[{place}] is at {path}, the mount path of {taken[path]}: choose another path."


def _unless_list(part: Mapping[str, Any], field: str, where: str) -> Iterator[str]:
    """Reject null, which would remove the list of Skysail, and any other type, which would replace it."""
    if field in part and not isinstance(part[field], list):
        yield f"{where}.{field} is not a list: write a list, which is added to that of Skysail, or remove it."


def _twice(spec: Mapping[str, Any], field: str) -> Iterator[str]:
    seen = set()
    for place, name in _named(spec, field, "name"):
        if name in seen:
            yield f"{_WHERE}.{field}[{place}] is named {name}, which is used twice: choose another name."
        seen.add(name)


def _named(part: Mapping[str, Any], field: str, key: str) -> Iterator[tuple[int, str]]:
    for place, item in enumerate(_items(part, field)):
        if isinstance(item, Mapping) and isinstance(item.get(key), str):
            yield place, item[key]


def _items(part: Mapping[str, Any], field: str) -> list[Any]:
    items = part.get(field)
    return items if isinstance(items, list) else []
