"""The environment of a container, resolved as a kubelet does it. Pure: referenced objects are passed in.

Later variables override earlier ones: Services, then `envFrom` in order, then `env` in order. `$(NAME)` is replaced by
the value of an earlier variable, `$$` is a dollar, and an unknown name stays unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec

from skysail.kube.api import quantities
from skysail.node.config import field_values
from skysail.node.config.errors import Missing
from skysail.node.config.field_values import Budget
from skysail.node.pod_types import Container, EnvFrom, EnvVar, Pod, ResourceSelector, TokenSource

_KEYED_FIELD = re.compile(r"^metadata\.(labels|annotations)\['([^']+)'\]$")

Data = Mapping[str, bytes]


class ResolvedReferences(msgspec.Struct, frozen=True, kw_only=True):
    """Objects that the pod refers to, by name. A missing name means that the object does not exist.

    `disks` has the provider's disk of each bound PVC, `tokens` the token of each token volume.
    """

    config_maps: Mapping[str, Data]
    secrets: Mapping[str, Data]
    services: Mapping[str, str]
    pod_ip: str = ""
    host_ip: str = ""
    allocatable: Mapping[str, str] = msgspec.field(default_factory=dict)
    disks: Mapping[str, str] = msgspec.field(default_factory=dict)
    tokens: Mapping[TokenSource, str] = msgspec.field(default_factory=dict)
    # Pull secrets of a pod at a cloud, None for one that does not exist.
    pull_secrets: Mapping[str, Data | None] = msgspec.field(default_factory=dict)


def resolve(
    pod: Pod, container: Container, resolved: ResolvedReferences, budget: Budget | None = None
) -> dict[str, str]:
    """Return the environment of a container.

    Raises `Missing` if a mandatory reference does not exist.
    Raises `InvalidField` if a variable cannot be passed to a program.
    """
    where, budget = field_values.container_path(pod, container), budget or Budget()
    result: dict[str, str] = {}
    for name, value in resolved.services.items():
        result[name] = field_values.variable(f"{where}.env", name, value, budget)
    for index, source in enumerate(container.env_from):
        result.update(_from(f"{where}.envFrom[{index}]", source, resolved, budget))
    for index, variable in enumerate(container.env):
        path = f"{where}.env[{index}].{'valueFrom' if variable.value_from else 'value'}"
        found = _value(path, pod, container, variable, resolved, result)
        if found is not None:
            result[variable.name] = field_values.variable(path, variable.name, found, budget)
    return result


def field(pod: Pod, path: str, resolved: ResolvedReferences) -> str:
    """Return a field of the pod for the downward API. Raises `Missing` if the downward API has no such field."""
    if keyed := _KEYED_FIELD.match(path):
        entries = pod.metadata.labels if keyed.group(1) == "labels" else pod.metadata.annotations
        return (entries or {}).get(keyed.group(2), "")
    known: dict[str, Callable[[], str]] = {
        "metadata.name": lambda: pod.metadata.name,
        "metadata.namespace": lambda: pod.metadata.namespace,
        "metadata.uid": lambda: pod.metadata.uid,
        "metadata.labels": lambda: _listed(pod.metadata.labels),
        "metadata.annotations": lambda: _listed(pod.metadata.annotations),
        "spec.nodeName": lambda: pod.spec.node_name,
        "spec.serviceAccountName": lambda: pod.spec.service_account_name,
        "status.hostIP": lambda: resolved.host_ip,
        "status.hostIPs": lambda: resolved.host_ip,
        "status.podIP": lambda: resolved.pod_ip,
        "status.podIPs": lambda: resolved.pod_ip,
    }
    if path not in known:
        raise Missing("InvalidFieldPath", f"Field {path} is not available in the downward API.")
    return known[path]()


def resource(pod: Pod, container: Container, selector: ResourceSelector, resolved: ResolvedReferences) -> str:
    """Return a limit or request of a container. Without a limit, the node's allocatable amount counts."""
    every = (*pod.spec.containers, *pod.spec.init_containers)
    target = next((c for c in every if c.name == (selector.container_name or container.name)), container)
    kind, _, name = selector.resource.partition(".")
    amounts = target.resources.limits if kind == "limits" else target.resources.requests
    amount = amounts.get(name, resolved.allocatable.get(name, "0") if kind == "limits" else "0")
    return str(quantities.in_units(amount, selector.divisor))


def service_variables(services: Mapping[str, tuple[str, tuple[tuple[str, int], ...]]]) -> dict[str, str]:
    """Return the variables of each Service, such as `NAME_SERVICE_HOST`: its address and its named ports."""
    result: dict[str, str] = {}
    for name, (address, ports) in services.items():
        prefix = name.upper().replace("-", "_")
        if not ports:
            continue
        result[f"{prefix}_SERVICE_HOST"] = address
        result[f"{prefix}_SERVICE_PORT"] = str(ports[0][1])
        result[f"{prefix}_PORT"] = f"tcp://{address}:{ports[0][1]}"
        for port_name, port in ports:
            if port_name:
                result[f"{prefix}_SERVICE_PORT_{port_name.upper().replace('-', '_')}"] = str(port)
            result[f"{prefix}_PORT_{port}_TCP"] = f"tcp://{address}:{port}"
            result[f"{prefix}_PORT_{port}_TCP_PROTO"] = "tcp"
            result[f"{prefix}_PORT_{port}_TCP_PORT"] = str(port)
            result[f"{prefix}_PORT_{port}_TCP_ADDR"] = address
    return result


def _from(path: str, source: EnvFrom, resolved: ResolvedReferences, budget: Budget) -> dict[str, str]:
    result: dict[str, str] = {}
    for reference, store, kind in (
        (source.config_map_ref, resolved.config_maps, "ConfigMap"),
        (source.secret_ref, resolved.secrets, "Secret"),
    ):
        if reference is None:
            continue
        data = store.get(reference.name)
        if data is None and not reference.optional:
            raise _missing(kind, reference.name)
        for key, value in (data or {}).items():
            where = f"{path} (key {key} of {kind} {reference.name})"
            result[source.prefix + key] = field_values.variable(where, source.prefix + key, _text(value), budget)
    return result


def _value(
    path: str,
    pod: Pod,
    container: Container,
    variable: EnvVar,
    resolved: ResolvedReferences,
    earlier: Mapping[str, str],
) -> str | None:
    source = variable.value_from
    if source is None:
        return field_values.expand(path, variable.value, earlier)
    if source.field_ref:
        return field(pod, source.field_ref.field_path, resolved)
    if source.resource_field_ref:
        return resource(pod, container, source.resource_field_ref, resolved)
    for selector, store, kind in (
        (source.config_map_key_ref, resolved.config_maps, "ConfigMap"),
        (source.secret_key_ref, resolved.secrets, "Secret"),
    ):
        if selector is None:
            continue
        data = store.get(selector.name)
        if data is not None and selector.key in data:
            return _text(data[selector.key])
        if not selector.optional:
            raise _missing(kind, selector.name, selector.key if data is not None else "")
    return None


def _missing(kind: str, name: str, key: str = "") -> Missing:
    title = f"Key {key} of {kind} {name}" if key else f"{kind} {name}"
    return Missing(
        f"Mandatory{kind}NotFound",
        f"{title} not found: create it, and the container starts.",
    )


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _listed(entries: Mapping[str, str] | None) -> str:
    return "\n".join(f'{name}="{value}"' for name, value in sorted((entries or {}).items()))
