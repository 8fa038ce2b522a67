"""The pods of a model: the one that makes a revision ready, and those that serve it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from skysail.base.names import Annotation
from skysail.core.actions import Manifest
from skysail.kinds.serving.children import fetch_container, labels
from skysail.kinds.serving.children.fetch_container import literal
from skysail.kinds.serving.spec import model_uri
from skysail.kinds.serving.spec.config import Terms
from skysail.kinds.serving.spec.desired import Serving, Want
from skysail.kinds.serving.spec.revisions import Entry
from skysail.kinds.serving.spec.runtimes import MODELS, ROWS, Row
from skysail.kube.api.resource_validation import is_device

HTTP = "http"
GRPC = "grpc"
VALIDATION_CONTAINER = "validate"

_SCRIPTS = "/mnt/validate"
# A server still gets requests for a moment after it was told to end: until every node knows that it does.
_DRAIN_SECONDS = 5
_GRACE_SECONDS = 60
_STARTUP_PERIOD_SECONDS = 2
_PROBE_TIMEOUT_SECONDS = 5
# A download may take so much longer than the one before: on another node, and beside those of other servers.
_SLOWER = 3


def prepare(serving: Serving, entry: Entry, keep: Iterable[str], terms: Terms) -> Manifest | None:
    """The template that downloads and validates a revision; None where there is neither to do."""
    is_downloaded, validates = not model_uri.in_image(entry.want.uri), bool(entry.want.script)
    if not is_downloaded and not validates:
        return None
    source = labels.of_source(entry)
    pod = _pod(_near(serving, entry, source)) | {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": terms.prepare_seconds,
        "volumes": fetch_container.volumes(entry.want, validates=validates),
    }
    if is_downloaded:
        pod["volumes"].append(fetch_container.model_volume(serving))
    if serving.storage is not None:
        # A new claim belongs to root, and the one that writes does not.
        pod["securityContext"] |= {"fsGroup": fetch_container.USER, "fsGroupChangePolicy": "OnRootMismatch"}
    # Its own among them, so that what earlier tries have left goes also where there is no history yet.
    kept = (*keep, entry.hash) if serving.storage else ()
    fetch = fetch_container.container(serving, entry, terms, keep=kept, validates=validates)
    if validates:
        pod["volumes"].append({"name": "scripts", "configMap": {"name": serving.names.script, "optional": True}})
        pod |= {"initContainers": [fetch], "containers": [_validation(serving, entry)]}
    else:
        pod["containers"] = [fetch]
    return {"metadata": {"labels": labels.of_preparing(serving, entry) | source}, "spec": pod}


def server(serving: Serving, entry: Entry, terms: Terms) -> Manifest:
    """The template of what serves a revision."""
    source = labels.of_source(entry) if downloads(serving, entry) else {}
    pod = _pod(_near(serving, entry, source)) | {
        "containers": [_server(serving, entry, terms)],
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
    }
    if not model_uri.in_image(entry.want.uri):
        pod["volumes"] = [fetch_container.model_volume(serving)]
    if downloads(serving, entry):
        pod["initContainers"] = [fetch_container.container(serving, entry, terms)]
        pod["volumes"] += fetch_container.volumes(entry.want)
    metadata: Manifest = {"labels": labels.of_server(serving, entry) | source}
    if annotations := _scraped(ROWS[entry.want.runtime]):
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": pod}


def downloads(serving: Serving, entry: Entry) -> bool:
    """Whether each server brings the model itself, because nothing keeps it for all of them."""
    return serving.storage is None and not model_uri.in_image(entry.want.uri)


def patience(serving: Serving, entry: Entry, terms: Terms) -> int:
    """Seconds that a server has until it answers. What it downloads itself it has the time for beside that."""
    if not downloads(serving, entry):
        return terms.progress_seconds
    known = entry.seconds * _SLOWER or terms.prepare_seconds
    return terms.progress_seconds + min(known, terms.prepare_seconds)


def _near(serving: Serving, entry: Entry, source: dict[str, str]) -> dict[str, str]:
    """Labels of pods whose node it has to share, because a claim that both have can be at one node only.

    The model's own goes before its source: a pod that asks for both would be kept near those alone that have both.
    """
    if serving.storage is not None and not serving.storage.is_shared:
        return labels.selector(serving)
    return {} if entry.is_shared else source


def _pod(near: dict[str, str]) -> Manifest:
    found: Manifest = {
        # Neither the download nor the model has anything to ask of the API server.
        "automountServiceAccountToken": False,
        # A namespace may have hundreds of Services, and each would add seven variables.
        "enableServiceLinks": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
    }
    if near:
        term = {"labelSelector": {"matchLabels": near}, "topologyKey": "kubernetes.io/hostname"}
        found["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return found


def _validation(serving: Serving, entry: Entry) -> Manifest:
    mounts = [fetch_container.launcher_mount(), {"name": "scripts", "mountPath": _SCRIPTS, "readOnly": True}]
    found = _runtime(serving, entry, mounts)
    # Else what it prints first comes after its last words, of which the end is kept.
    found["env"].append({"name": "PYTHONUNBUFFERED", "value": "1"})
    return found | {
        "name": VALIDATION_CONTAINER,
        "command": ["python3", f"{fetch_container.LAUNCHER}/validate.py", literal(entry.want.script)],
    }


def _server(serving: Serving, entry: Entry, terms: Terms) -> Manifest:
    want, row = entry.want, ROWS[entry.want.runtime]
    found = _runtime(serving, entry, []) | {
        "name": row.container,
        "args": [literal(word) for word in row.arguments(serving.names.model, model_uri.in_image(want.uri))],
        "ports": _ports(row),
        **_probes(row, want, serving.names.model, terms, patience(serving, entry, terms)),
    }
    if not (row.drains and terms.known(want.image, want.runtime)):
        found["lifecycle"] = {"preStop": {"sleep": {"seconds": _DRAIN_SECONDS}}}
    return found


def _runtime(serving: Serving, entry: Entry, mounts: list[Manifest]) -> Manifest:
    """What a server and its validation have in common: the image, the model and where it is."""
    want = entry.want
    ours = [{"name": name, "value": literal(value)} for name, value in environment(serving, want).items()]
    return {
        "image": want.image,
        "imagePullPolicy": "IfNotPresent",
        # Ours first, so that a value of the user's can use them.
        "env": [*ours, *want.env],
        "resources": _resources(want.resources),
        "securityContext": {"allowPrivilegeEscalation": False},
        # The end of the log is then in the pod's status, and outlives the container.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts if model_uri.in_image(want.uri) else [fetch_container.model_mount(entry), *mounts],
    }


def environment(serving: Serving, want: Want) -> dict[str, str]:
    """What a server and a validation find, beside what the user adds."""
    return {
        **ROWS[want.runtime].environment,
        "MODEL_URI": want.uri,
        "MODEL_NAME": serving.names.model,
        "MODEL_VERSION": want.version,
        "MODEL_PATH": model_uri.in_image(want.uri) or MODELS,
    }


def _resources(wanted: Mapping[str, Any]) -> Manifest:
    """GPUs and the like are not overcommitted: the API server refuses a request of them without the same limit."""
    devices = {name: amount for name, amount in wanted.get("requests", {}).items() if is_device(name)}
    return {**wanted, "limits": {**devices, **wanted.get("limits", {})}} if devices else {**wanted}


def _ports(row: Row) -> list[Manifest]:
    named = {HTTP: row.port, GRPC: row.grpc, "metrics": row.metrics[0] if row.metrics else None}
    if named["metrics"] == row.port:
        del named["metrics"]
    return [{"name": name, "containerPort": port} for name, port in named.items() if port is not None]


def _probes(row: Row, want: Want, model: str, terms: Terms, seconds: int) -> Manifest:
    """A large model may load as long as its rollout may take, whose deadline says more than a container that was killed
    before; a busy server is not a dead one.
    """
    ready: Manifest = {"httpGet": {"path": want.ready or row.ready_path(model), "port": HTTP}}
    has_path = row.live and terms.known(want.image, want.runtime)
    live: Manifest = {"httpGet": {"path": row.live, "port": HTTP}} if has_path else {"tcpSocket": {"port": HTTP}}
    timing = {"timeoutSeconds": _PROBE_TIMEOUT_SECONDS}
    tries = math.ceil(seconds / _STARTUP_PERIOD_SECONDS)
    return {
        "startupProbe": {**ready, **timing, "periodSeconds": _STARTUP_PERIOD_SECONDS, "failureThreshold": tries},
        "readinessProbe": {**ready, **timing, "periodSeconds": 5, "failureThreshold": 3},
        "livenessProbe": {**live, **timing, "periodSeconds": 10, "failureThreshold": 6},
    }


def _scraped(row: Row) -> dict[str, str]:
    if row.metrics is None:
        return {}
    port, path = row.metrics
    return {Annotation.SCRAPE: "true", Annotation.SCRAPE_PORT: str(port), Annotation.SCRAPE_PATH: path}
