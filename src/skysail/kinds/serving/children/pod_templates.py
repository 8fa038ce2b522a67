"""Pod templates of a model: the prepare pod and the servers. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from skysail.base.names import Annotation, Label
from skysail.core.actions import Manifest
from skysail.kinds.serving.children import fetch_container, labels
from skysail.kinds.serving.spec import model_uri
from skysail.kinds.serving.spec.config import ServingConfig
from skysail.kinds.serving.spec.desired import DesiredModel, RevisionSpec
from skysail.kinds.serving.spec.revisions import Revision
from skysail.kinds.serving.spec.runtimes import MODELS, RUNTIMES, ServingRuntime
from skysail.kube.api.env_escape import literal
from skysail.kube.api.resource_validation import is_extended_resource

HTTP = "http"
GRPC = "grpc"
VALIDATION_CONTAINER = "validate"

_SCRIPTS = "/mnt/validate"
# A terminating server still gets requests until every node has applied the change.
_DRAIN_SECONDS = 5
_GRACE_SECONDS = 60
_STARTUP_PERIOD_SECONDS = 2
_PROBE_TIMEOUT_SECONDS = 5
# A server's download may take this many times longer than the first one: it runs on another node, next to those of
# other servers.
_SLOWER = 3


def prepare_pod(
    desired: DesiredModel, revision: Revision, keep: Iterable[str], config: ServingConfig
) -> Manifest | None:
    """Return the template that downloads and validates a revision, or None if neither is needed."""
    is_downloaded, validates = not model_uri.image_path(revision.want.uri), bool(revision.want.script)
    if not is_downloaded and not validates:
        return None
    source = labels.of_source(revision)
    pod = _pod(_affinity(desired, revision, source)) | {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": config.prepare_deadline_seconds,
        "volumes": fetch_container.volumes(revision.want, validates=validates),
    }
    if is_downloaded:
        pod["volumes"].append(fetch_container.model_volume(desired))
    if desired.storage is not None:
        # A new PVC belongs to root, but the fetch container runs as another user.
        pod["securityContext"] |= {"fsGroup": fetch_container.USER, "fsGroupChangePolicy": "OnRootMismatch"}
    # Include its own hash, so that leftovers of earlier attempts are deleted even without a history.
    kept = (*keep, revision.hash) if desired.storage else ()
    fetch = fetch_container.container(desired, revision, config, keep=kept, validates=validates)
    if validates:
        pod["volumes"].append({"name": "scripts", "configMap": {"name": desired.names.script, "optional": True}})
        pod |= {"initContainers": [fetch], "containers": [_validation(desired, revision)]}
    else:
        pod["containers"] = [fetch]
    return {"metadata": {"labels": labels.for_prepare_pod(desired, revision) | source}, "spec": pod}


def server_pod(desired: DesiredModel, revision: Revision, config: ServingConfig) -> Manifest:
    """Return the template of the servers of a revision."""
    if revision.want.offload:
        return _cloud_server_pod(desired, revision, config)
    source = labels.of_source(revision) if downloads(desired, revision) else {}
    pod = _pod(_affinity(desired, revision, source)) | {
        "containers": [_server(desired, revision, config)],
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
    }
    if not model_uri.image_path(revision.want.uri):
        pod["volumes"] = [fetch_container.model_volume(desired)]
    if downloads(desired, revision):
        pod["initContainers"] = [fetch_container.container(desired, revision, config)]
        pod["volumes"] += fetch_container.volumes(revision.want)
    metadata: Manifest = {"labels": labels.of_server(desired, revision) | source}
    if annotations := _scraped(RUNTIMES[revision.want.runtime]):
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": pod}


def _cloud_server_pod(desired: DesiredModel, revision: Revision, config: ServingConfig) -> Manifest:
    """Return the template of servers at a cloud, where a pod has one container and no PVC of the cluster.

    The container downloads the model and then becomes the server.
    """
    pod = _pod({}) | {
        "containers": [_cloud_server(desired, revision, config)],
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
    }
    if downloads(desired, revision):
        pod["volumes"] = [fetch_container.model_volume(desired, at_cloud=True)]
    annotations = {**revision.want.offload, Annotation.PERIOD.value: str(desired.period)}
    metadata = {"labels": labels.of_server(desired, revision), "annotations": annotations}
    return {"metadata": metadata, "spec": pod}


def _cloud_server(desired: DesiredModel, revision: Revision, config: ServingConfig) -> Manifest:
    found = _server(desired, revision, config)
    if not downloads(desired, revision):
        return found
    words = [*RUNTIMES[revision.want.runtime].program, *found["args"]]
    return found | fetch_container.before_server(desired, revision, config) | {"args": words}


def downloads(desired: DesiredModel, revision: Revision) -> bool:
    """Return whether each server downloads the model itself, because no PVC that it can mount holds it."""
    has_pvc = desired.storage is not None and not revision.want.offload
    return not has_pvc and not model_uri.image_path(revision.want.uri)


def startup_timeout(desired: DesiredModel, revision: Revision, config: ServingConfig) -> int:
    """Return the seconds that a server has to become ready, including its own download."""
    if not downloads(desired, revision):
        return config.progress_seconds
    known = revision.seconds * _SLOWER or config.prepare_deadline_seconds
    return config.progress_seconds + min(known, config.prepare_deadline_seconds)


def _affinity(desired: DesiredModel, revision: Revision, source: dict[str, str]) -> Manifest:
    """Return the selector of pods that must share the node, because both mount a ReadWriteOnce PVC.

    The model's own PVC takes precedence over the source: with both labels, only pods that have both would match.
    Servers at a cloud mount no PVC.
    """
    if desired.storage is not None and not desired.storage.is_shared:
        not_at_cloud = {"matchExpressions": [{"key": Label.AT_CLOUD.value, "operator": "DoesNotExist"}]}
        return {"matchLabels": labels.selector(desired), **(not_at_cloud if desired.ignores_cloud else {})}
    return {} if revision.is_shared or not source else {"matchLabels": source}


def _pod(near: Manifest) -> Manifest:
    found: Manifest = {
        # Neither the download nor the model needs the API server.
        "automountServiceAccountToken": False,
        # A namespace may have hundreds of Services, and each would add seven variables.
        "enableServiceLinks": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
    }
    if near:
        term = {"labelSelector": near, "topologyKey": "kubernetes.io/hostname"}
        found["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return found


def _validation(desired: DesiredModel, revision: Revision) -> Manifest:
    mounts = [fetch_container.launcher_mount(), {"name": "scripts", "mountPath": _SCRIPTS, "readOnly": True}]
    found = _runtime(desired, revision, mounts)
    if revision.want.offload:
        # The validation runs in the cluster, which may have no such device.
        found["resources"] = _without_devices(found["resources"])
    # Without this, early output would come after the final lines, of which only the end is kept.
    found["env"].append({"name": "PYTHONUNBUFFERED", "value": "1"})
    return found | {
        "name": VALIDATION_CONTAINER,
        "command": ["python3", f"{fetch_container.LAUNCHER_PATH}/validate.py", literal(revision.want.script)],
    }


def _server(desired: DesiredModel, revision: Revision, config: ServingConfig) -> Manifest:
    spec, runtime = revision.want, RUNTIMES[revision.want.runtime]
    found = _runtime(desired, revision, []) | {
        "name": runtime.container,
        "args": [literal(word) for word in runtime.arguments(desired.names.model, model_uri.image_path(spec.uri))],
        "ports": _ports(runtime),
        **_probes(runtime, spec, desired.names.model, config, startup_timeout(desired, revision, config)),
    }
    if not (runtime.drains and config.matching_runtime(spec.image, spec.runtime)):
        found["lifecycle"] = {"preStop": {"sleep": {"seconds": _DRAIN_SECONDS}}}
    return found


def _runtime(desired: DesiredModel, revision: Revision, mounts: list[Manifest]) -> Manifest:
    """Return the parts that a server and its validation share: image, environment, resources and model mount."""
    spec = revision.want
    ours = [{"name": name, "value": literal(value)} for name, value in environment(desired, spec).items()]
    return {
        "image": spec.image,
        "imagePullPolicy": "IfNotPresent",
        # Ours come first, so that the user's values can refer to them.
        "env": [*ours, *spec.env],
        "resources": _resources(spec.resources),
        "securityContext": {"allowPrivilegeEscalation": False},
        # Keeps the end of the log in the pod's status, which outlives the container.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts if model_uri.image_path(spec.uri) else [fetch_container.model_mount(revision), *mounts],
    }


def environment(desired: DesiredModel, spec: RevisionSpec) -> dict[str, str]:
    """Return the environment variables that Skysail sets for a server and its validation."""
    return {
        **RUNTIMES[spec.runtime].environment,
        "MODEL_URI": spec.uri,
        "MODEL_NAME": desired.names.model,
        "MODEL_VERSION": spec.version,
        "MODEL_PATH": model_uri.image_path(spec.uri) or MODELS,
    }


def _resources(desired: Mapping[str, Any]) -> Manifest:
    """Add limits for devices: the API server rejects a request for GPUs without an equal limit."""
    devices = {name: amount for name, amount in desired.get("requests", {}).items() if is_extended_resource(name)}
    return {**desired, "limits": {**devices, **desired.get("limits", {})}} if devices else {**desired}


def _without_devices(resources: Mapping[str, Any]) -> Manifest:
    return {
        part: {name: amount for name, amount in amounts.items() if not is_extended_resource(name)}
        for part, amounts in resources.items()
    }


def _ports(runtime: ServingRuntime) -> list[Manifest]:
    named = {HTTP: runtime.port, GRPC: runtime.grpc, "metrics": runtime.metrics[0] if runtime.metrics else None}
    if named["metrics"] == runtime.port:
        del named["metrics"]
    return [{"name": name, "containerPort": port} for name, port in named.items() if port is not None]


def _probes(runtime: ServingRuntime, spec: RevisionSpec, model: str, config: ServingConfig, seconds: int) -> Manifest:
    """Return the probes.

    The startup probe allows as much time as the rollout: its deadline explains more than a killed container. A busy
    server must not count as dead.
    """
    ready: Manifest = {"httpGet": {"path": spec.ready or runtime.ready_path(model), "port": HTTP}}
    has_path = runtime.live and config.matching_runtime(spec.image, spec.runtime)
    live: Manifest = {"httpGet": {"path": runtime.live, "port": HTTP}} if has_path else {"tcpSocket": {"port": HTTP}}
    timing = {"timeoutSeconds": _PROBE_TIMEOUT_SECONDS}
    tries = math.ceil(seconds / _STARTUP_PERIOD_SECONDS)
    return {
        "startupProbe": {**ready, **timing, "periodSeconds": _STARTUP_PERIOD_SECONDS, "failureThreshold": tries},
        "readinessProbe": {**ready, **timing, "periodSeconds": 5, "failureThreshold": 3},
        "livenessProbe": {**live, **timing, "periodSeconds": 10, "failureThreshold": 6},
    }


def _scraped(runtime: ServingRuntime) -> dict[str, str]:
    if runtime.metrics is None:
        return {}
    port, path = runtime.metrics
    return {Annotation.SCRAPE: "true", Annotation.SCRAPE_PORT: str(port), Annotation.SCRAPE_PATH: path}
