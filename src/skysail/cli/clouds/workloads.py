"""Workloads of a manifest file: the pods that each object creates, with the owners that they inherit from. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from skysail.base.errors import UserError
from skysail.kinds.offload.objects import Pod
from skysail.kinds.offload.plan import gangs
from skysail.kinds.offload.plan.gangs import Owner
from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kinds.training.children.manifests import build_children
from skysail.kube.api.objects import Meta

Manifest = dict[str, Any]

_DEFAULT_BACKOFF_LIMIT = 6
# Placeholder for the UID that the API server will choose. Labels of pods hold it.
_UID = "00000000-0000-0000-0000-000000000000"


class InvalidFile(UserError):
    """A file that cannot be planned. The message names the file and the object."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Pods of one object. `owners`: nearest first. `pods`: number in total. `parallel`: number at the same time.

    `retries`: further pods that failures may cost. `is_endless`: pods are replaced for as long as the object exists.
    """

    kind: str
    pod: Pod
    owners: tuple[Owner, ...] = ()
    pods: int = 1
    parallel: int = 1
    retries: int = 0
    is_endless: bool = False

    @property
    def name(self) -> str:
        return self.owners[-1].name if self.owners else self.pod.metadata.name

    @property
    def namespace(self) -> str:
        return self.pod.metadata.namespace


class FileContent(msgspec.Struct, frozen=True):
    """Workloads of a file, and the other objects in it, which run no pods that this command knows."""

    workloads: tuple[Workload, ...]
    skipped: tuple[str, ...]


def parse(text: str, file: str, namespace: str) -> FileContent:
    """Read all documents. `namespace` is for objects that name none. Raises InvalidFile."""
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        raise InvalidFile(f"{file} is not valid YAML: {' '.join(str(error).split())}.") from error
    workloads: list[Workload] = []
    skipped: list[str] = []
    for manifest in _flatten(documents, file):
        kind, name = str(manifest.get("kind") or ""), _name(manifest)
        try:
            found = list(_workloads(manifest, kind, namespace))
        except (msgspec.ValidationError, AttributeError, TypeError, ValueError) as error:
            raise InvalidFile(f"{file}: {kind} {name} cannot be read: {error}. Fix the manifest.") from error
        workloads += found
        if not found:
            skipped.append(f"{kind} {name}")
    return FileContent(tuple(workloads), tuple(skipped))


def _flatten(documents: list[Any], file: str) -> Iterator[Manifest]:
    """Yield all objects, also those in Lists."""
    for document in documents:
        if not isinstance(document, dict) or not document.get("kind"):
            raise InvalidFile(f"{file} holds a document that is no Kubernetes object: it has no kind.")
        if not isinstance(document.get("metadata") or {}, dict):
            raise InvalidFile(f"{file}: a {document['kind']} cannot be read: its metadata is no mapping.")
        if document["kind"] == "List":
            yield from _flatten(list(document.get("items") or ()), file)
        else:
            yield document


def _workloads(manifest: Manifest, kind: str, namespace: str) -> Iterator[Workload]:
    spec = manifest.get("spec") or {}
    match kind:
        case "Pod":
            yield Workload(kind=kind, pod=_pod(manifest, _name(manifest), _namespace(manifest, namespace)))
        case "Job":
            yield _job(manifest, (), kind, namespace)
        case "CronJob":
            template = spec.get("jobTemplate") or {}
            job = {**template, "metadata": {**_metadata(template), "name": _name(manifest)}}
            yield _job(job, (_owner("CronJob", manifest),), kind, _namespace(manifest, namespace))
        case "Deployment":
            replicas = 1 if spec.get("replicas") is None else int(spec["replicas"])
            pod = _pod(spec.get("template") or {}, _name(manifest), _namespace(manifest, namespace))
            owners = (_owner(kind, manifest),)
            yield Workload(kind=kind, pod=pod, owners=owners, pods=replicas, parallel=replicas, is_endless=True)
        case "TrainingJob":
            yield from _training_job(manifest, _namespace(manifest, namespace))


def _training_job(manifest: Manifest, namespace: str) -> Iterator[Workload]:
    metadata = {**_metadata(manifest), "namespace": namespace, "uid": _UID}
    job = msgspec.convert({**manifest, "metadata": metadata}, TrainingJob)
    for _, child in build_children(job, 0, None).jobs:
        yield _job(child, (_owner("TrainingJob", manifest),), "TrainingJob", namespace)


def _job(job: Manifest, owners: tuple[Owner, ...], kind: str, namespace: str) -> Workload:
    spec = job.get("spec") or {}
    parallelism = 1 if spec.get("parallelism") is None else int(spec["parallelism"])
    completions = parallelism if spec.get("completions") is None else int(spec["completions"])
    limit = spec.get("backoffLimit")
    return Workload(
        kind=kind,
        pod=_pod(spec.get("template") or {}, _name(job), _namespace(job, namespace)),
        owners=(_owner("Job", job), *owners),
        pods=max(completions, parallelism),
        parallel=min(parallelism, completions),
        retries=_DEFAULT_BACKOFF_LIMIT if limit is None else int(limit),
    )


def _pod(template: Manifest, name: str, namespace: str) -> Pod:
    metadata = msgspec.convert(_metadata(template), Meta)
    metadata = msgspec.structs.replace(metadata, name=name, namespace=namespace)
    spec = template.get("spec") or {}
    if not spec.get("containers"):
        raise ValueError("its pod has no containers")
    return Pod(metadata, spec)


def _owner(kind: str, manifest: Manifest) -> Owner:
    metadata = msgspec.convert(_metadata(manifest), Meta)
    return Owner(
        kind=kind,
        name=metadata.name,
        annotations=metadata.annotations or {},
        labels=metadata.labels or {},
        groups=gangs.member_groups(kind, manifest.get("spec") or {}),
        has_ranks=gangs.has_ranks(kind, manifest.get("spec") or {}),
    )


def _name(manifest: Manifest) -> str:
    metadata = _metadata(manifest)
    return str(metadata.get("name") or metadata.get("generateName") or "")


def _namespace(manifest: Manifest, default: str) -> str:
    return str(_metadata(manifest).get("namespace") or default)


def _metadata(manifest: Manifest) -> Manifest:
    found: Manifest = manifest.get("metadata") or {}
    return found
