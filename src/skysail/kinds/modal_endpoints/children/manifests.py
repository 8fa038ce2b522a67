"""Deployment, Service and ConfigMap of an endpoint or function. Pure.

The pods ask for Modal by annotation, so placement, claims, policies and budgets treat them as any other pod. The
Service selects them, and its traffic goes through the bridge.
"""

from __future__ import annotations

from typing import Any

from skysail.base.names import Annotation, Label
from skysail.kinds.modal_endpoints import desired as desired_module
from skysail.kinds.modal_endpoints.desired import Desired
from skysail.kube.api.child_names import MAX_LABEL_LENGTH, child_prefix, label_value
from skysail.kube.api.env_escape import literal
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import CONFIG_MAP, DEPLOYMENT, SERVICE

Manifest = dict[str, Any]

CONTAINER = "main"
_SUFFIX = "-modal"
_MAX_STEM = 40
_HTTP_PORT = 80
_PORT_NAME = "http"
_CODE_PATH = "/skysail"
_GRACE_SECONDS = 30
_PROGRESS_SECONDS = 900
_HISTORY = 2


def service_name(owner: Object) -> str:
    return child_prefix(owner.metadata.name, MAX_LABEL_LENGTH)


def deployment_name(owner: Object) -> str:
    return child_prefix(owner.metadata.name, _MAX_STEM) + _SUFFIX


def config_map_name(owner: Object, revision: str) -> str:
    return f"{deployment_name(owner)}-{revision}"


def selector(owner: Object) -> dict[str, str]:
    return {Label.ENDPOINT_UID.value: owner.metadata.uid}


def labels(owner: Object) -> dict[str, str]:
    return {
        **selector(owner),
        Label.MODAL_MANAGED.value: "true",
        Label.MODAL_FUNCTION.value: label_value(owner.metadata.name, _MAX_STEM),
    }


def service(owner: Object, desired: Desired) -> Manifest:
    # By name: during a rollout old pods still listen on their old port.
    target = {"targetPort": _PORT_NAME, "protocol": "TCP"}
    if desired.app is not None:
        # An App has no ports: the bridge calls its URL.
        target["appProtocol"] = "http"
    ports = [{"name": "http", "port": _HTTP_PORT, **target}]
    if desired.port != _HTTP_PORT:
        ports.append({"name": "server", "port": desired.port, **target})
    return {
        "apiVersion": SERVICE.api_version,
        "kind": SERVICE.kind,
        "metadata": _metadata(owner, service_name(owner)),
        "spec": {"type": "ClusterIP", "selector": selector(owner), "ports": ports},
    }


def config_map(owner: Object, desired: Desired) -> Manifest:
    """Return the code of one revision. It is immutable: a restarted container finds the code of its own revision."""
    return {
        "apiVersion": CONFIG_MAP.api_version,
        "kind": CONFIG_MAP.kind,
        "metadata": _metadata(owner, config_map_name(owner, desired.revision)),
        "immutable": True,
        "data": {file.key: file.content for file in desired.files},
    }


def deployment(owner: Object, desired: Desired, period: int) -> Manifest:
    """Return the Deployment. Old containers serve until new ones are ready, so an update fails no request.

    A pod of an App stands for the claim that pays for it. A new pod takes the App over, and deploys only if the
    revision has changed.
    """
    return {
        "apiVersion": DEPLOYMENT.api_version,
        "kind": DEPLOYMENT.kind,
        "metadata": _metadata(owner, deployment_name(owner)),
        "spec": {
            "replicas": desired.replicas,
            "revisionHistoryLimit": _HISTORY,
            "progressDeadlineSeconds": _PROGRESS_SECONDS,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "selector": {"matchLabels": selector(owner)},
            "template": {"metadata": _pod_metadata(owner, desired, period), "spec": _pod_spec(owner, desired)},
        },
    }


def _metadata(owner: Object, name: str) -> Manifest:
    return {"name": name, "namespace": owner.metadata.namespace, "labels": labels(owner)}


def _pod_metadata(owner: Object, desired: Desired, period: int) -> Manifest:
    annotations = {Annotation.OFFLOAD.value: "modal"}
    if desired.gpu:
        annotations[Annotation.MODAL_GPU.value] = f"{desired.gpu}:{desired.gpu_count}"
    if desired.app is not None:
        annotations |= {Annotation.MODAL_APP.value: desired.app.text, Annotation.PERIOD.value: str(period)}
    return {"labels": {**labels(owner), Label.REVISION.value: desired.revision}, "annotations": annotations}


def _pod_spec(owner: Object, desired: Desired) -> Manifest:
    limits = {"cpu": desired.cpu, "memory": desired.memory}
    if desired.gpu_count:
        limits["nvidia.com/gpu"] = str(desired.gpu_count)
    container: Manifest = {
        "name": CONTAINER,
        "image": desired.image,
        "env": _env(desired),
        "ports": [{"name": _PORT_NAME, "containerPort": desired.port}],
        "resources": {"limits": limits},
    }
    if desired.app is None:
        # An App runs only after a container of it has answered.
        container["readinessProbe"] = {"tcpSocket": {"port": desired.port}, "periodSeconds": 1, "failureThreshold": 3}
    spec: Manifest = {
        "containers": [container],
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
    }
    if desired.is_own_server:
        container |= {name: list(words) for name in ("command", "args") if (words := getattr(desired, name))}
        return spec
    items = [{"key": file.key, "path": file.path} for file in desired.files]
    container |= {
        "command": ["python", f"{_CODE_PATH}/{desired_module.shim_path(desired.files)}"],
        "workingDir": _CODE_PATH,
        "volumeMounts": [{"name": "code", "mountPath": _CODE_PATH, "readOnly": True}],
    }
    name = config_map_name(owner, desired.revision)
    return {**spec, "volumes": [{"name": "code", "configMap": {"name": name, "items": items}}]}


def _env(desired: Desired) -> list[Manifest]:
    """Return the variables. Those of the handler server come last, so that nobody replaces them by accident."""
    own = {
        "SKYSAIL_HANDLER": desired.handler,
        "SKYSAIL_RETURNS": desired.returns,
        "SKYSAIL_TIMEOUT": str(desired.timeout),
        "SKYSAIL_CONCURRENCY": str(desired.concurrency),
        "SKYSAIL_PORT": str(desired.port),
    }
    path = ":".join(part for part in (_CODE_PATH, dict(desired.env).get("PYTHONPATH", "")) if part)
    served = {} if desired.is_own_server else {**own, "PYTHONPATH": path}
    merged = {**dict(desired.env), **served}
    return [{"name": name, "value": literal(value)} for name, value in merged.items()]
