"""The environment of a container, resolved as a kubelet does it. Pure: what is referred to comes in as an argument.

Later names win over earlier ones: Services, then `envFrom` in order, then `env` in order. `$(NAME)` is replaced by what
stands before it, `$$` is a dollar, and an unknown name stays as it is.
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
    """What lies outside the pod's own spec, by name; a name that is not there does not exist.

    `disks` has the provider's disk for each bound PersistentVolumeClaim, `tokens` a token for each that is asked for.
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
    """Raises `Missing`, and InvalidField for a variable that no program can be given."""
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
    """A field of the pod itself, as the downward API tells it. Raises `Missing` for one that it does not have."""
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
        raise Missing("InvalidFieldPath", f"The field {path} cannot be given to a container.")
    return known[path]()


def resource(pod: Pod, container: Container, selector: ResourceSelector, resolved: ResolvedReferences) -> str:
    """A limit or request of a container; what has no limit may use the whole node."""
    every = (*pod.spec.containers, *pod.spec.init_containers)
    target = next((c for c in every if c.name == (selector.container_name or container.name)), container)
    which, _, name = selector.resource.partition(".")
    amounts = target.resources.limits if which == "limits" else target.resources.requests
    amount = amounts.get(name, resolved.allocatable.get(name, "0") if which == "limits" else "0")
    return str(quantities.in_units(amount, selector.divisor))


def service_variables(services: Mapping[str, tuple[str, tuple[tuple[str, int], ...]]]) -> dict[str, str]:
    """`NAME_SERVICE_HOST` and its kin for each Service: its address and its named ports."""
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
    for reference, store, what in (
        (source.config_map_ref, resolved.config_maps, "ConfigMap"),
        (source.secret_ref, resolved.secrets, "Secret"),
    ):
        if reference is None:
            continue
        data = store.get(reference.name)
        if data is None and not reference.optional:
            raise _absent(what, reference.name)
        for key, value in (data or {}).items():
            where = f"{path} (key {key} of {what} {reference.name})"
            result[source.prefix + key] = field_values.variable(where, source.prefix + key, _text(value), budget)
    return result


def _value(
    path: str, pod: Pod, container: Container, variable: EnvVar, resolved: ResolvedReferences, known: Mapping[str, str]
) -> str | None:
    source = variable.value_from
    if source is None:
        return field_values.expand(path, variable.value, known)
    if source.field_ref:
        return field(pod, source.field_ref.field_path, resolved)
    if source.resource_field_ref:
        return resource(pod, container, source.resource_field_ref, resolved)
    for selector, store, what in (
        (source.config_map_key_ref, resolved.config_maps, "ConfigMap"),
        (source.secret_key_ref, resolved.secrets, "Secret"),
    ):
        if selector is None:
            continue
        data = store.get(selector.name)
        if data is not None and selector.key in data:
            return _text(data[selector.key])
        if not selector.optional:
            raise _absent(what, selector.name, selector.key if data is not None else "")
    return None


def _absent(what: str, name: str, key: str = "") -> Missing:
    thing = f"The key {key} of {what} {name}" if key else f"{what} {name}"
    return Missing(
        f"Mandatory{what}NotFound",
        f"{thing} does not exist. Create it, and the container starts; or mark the reference as optional.",
    )


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _listed(entries: Mapping[str, str] | None) -> str:
    return "\n".join(f'{name}="{value}"' for name, value in sorted((entries or {}).items()))
