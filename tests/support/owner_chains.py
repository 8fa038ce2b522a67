"""Objects of other projects that own pods: their CRDs without a schema, and chains of owners down to pods."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from skysail.claims.requirements.owner_kinds import PLURALS
from tests.support.kubectl import TIMEOUT, apply, get, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

Manifest = dict[str, Any]

# Versions of the kinds that a cluster need not have, by group.
_FOREIGN = {
    "kubeflow.org": "v1",
    "jobset.x-k8s.io": "v1alpha2",
    "leaderworkerset.x-k8s.io": "v1",
    "serving.kserve.io": "v1beta1",
    "serving.knative.dev": "v1",
}
_VERSIONS = {**_FOREIGN, "apps": "v1", "batch": "v1"}


@contextmanager
def foreign_kinds(cluster: Cluster) -> Iterator[None]:
    """Serve the kinds of other projects that own pods. Their objects are accepted as they are."""
    definitions = [_definition(group, kind) for group, kind in PLURALS if group in _FOREIGN]
    names = [f"crd/{definition['metadata']['name']}" for definition in definitions]
    apply(cluster, "default", *definitions)
    ok(cluster, "wait", *names, "--for=condition=Established", TIMEOUT)
    yield
    ok(cluster, "delete", *names, TIMEOUT)


def create_chain(
    cluster: Cluster, namespace: str, owners: list[tuple[str, str]], last: Manifest, annotations: dict[str, str]
) -> None:
    """Create owners from the top down, the first one with annotations, and an object that the last one owns."""
    reference: Manifest | None = None
    name = last["metadata"]["name"]
    for group, kind in owners:
        manifest: Manifest = {
            "apiVersion": f"{group}/{_VERSIONS[group]}",
            "kind": kind,
            "metadata": {"name": name, **({} if reference else {"annotations": annotations})},
        }
        if kind == "CronJob":
            template = {"spec": last["spec"]}
            manifest["spec"] = {"schedule": "0 0 1 1 *", "suspend": True, "jobTemplate": template}
        reference = _created(cluster, namespace, _owned(manifest, reference))
    _created(cluster, namespace, _owned(last, reference))


def _owned(manifest: Manifest, reference: Manifest | None) -> Manifest:
    if reference is not None:
        manifest["metadata"]["ownerReferences"] = [reference]
    return manifest


def _created(cluster: Cluster, namespace: str, manifest: Manifest) -> Manifest:
    """Create an object, and return the reference to it as a controller."""
    shown = json.loads(ok(cluster, "create", "-n", namespace, "-o", "json", "-f", "-", stdin=json.dumps(manifest)))
    fields = {"apiVersion": shown["apiVersion"], "kind": shown["kind"], "name": shown["metadata"]["name"]}
    return {**fields, "uid": shown["metadata"]["uid"], "controller": True}


def nodes_of(cluster: Cluster, namespace: str) -> dict[str, str]:
    """Return the node of each pod, by the name that its chain has."""
    pods = get(cluster, namespace, "pods")["items"]
    return {pod["metadata"]["labels"]["chain"]: pod["spec"].get("nodeName", "") for pod in pods}


def _definition(group: str, kind: str) -> Manifest:
    plural = PLURALS[(group, kind)]
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": _FOREIGN[group], "served": True, "storage": True, "schema": schema}
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }
