"""Workloads of a manifest file, for `skysail plan`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from skysail.base.errors import UserError
from skysail.cli.clouds.workload_kinds import MODELS, WORKLOADS, Workload, metadata_of, model_servers, name_of
from skysail.kinds.serving.spec.config import ServingConfig

Manifest = dict[str, Any]


class InvalidFile(UserError):
    """A file that cannot be planned. The message names the file and the object."""


class FileContent(msgspec.Struct, frozen=True):
    """Workloads of a file, and the other objects in it, which run no pods that this command knows."""

    workloads: tuple[Workload, ...]
    skipped: tuple[str, ...]


def parse(text: str, file: str, namespace: str, serving: ServingConfig) -> FileContent:
    """Read all documents. `namespace` is for objects that name none. Raises InvalidFile, also without objects."""
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        raise InvalidFile(f"{file} is not valid YAML: {' '.join(str(error).split())}.") from error
    workloads: list[Workload] = []
    skipped: list[str] = []
    manifests = list(_flatten(documents, file))
    if not manifests:
        raise InvalidFile(f"{file} contains no objects. Name a file with manifests.")
    for manifest in manifests:
        kind, name = str(manifest.get("kind") or ""), name_of(manifest)
        try:
            found = list(_workloads(manifest, kind, namespace, serving))
        except (msgspec.ValidationError, AttributeError, TypeError, ValueError) as error:
            reason = str(error).rstrip(".")
            whose = f"{kind} {name}".strip()
            raise InvalidFile(f"{file}: {whose} cannot be read: {reason}. Fix the manifest.") from error
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


def _workloads(manifest: Manifest, kind: str, default: str, serving: ServingConfig) -> Iterator[Workload]:
    if kind not in WORKLOADS and kind not in MODELS:
        return
    if not name_of(manifest):
        raise ValueError("it has no name, so write one into metadata.name")
    namespace = str(metadata_of(manifest).get("namespace") or default)
    if kind in MODELS:
        yield from model_servers(manifest, namespace, serving)
    else:
        yield from WORKLOADS[kind](manifest, namespace)
