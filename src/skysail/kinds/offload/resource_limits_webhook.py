"""Mutating webhook that sets missing limits of extended resources in pods and pod templates. Pure.

A container that requests an extended resource such as `nvidia.com/gpu` needs an equal limit, or the API server rejects
it, because such resources cannot be overcommitted. Existing manifests often set only the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skysail.base.settings import NodeSettings
from skysail.kinds.offload import toleration_webhook
from skysail.kube.admission.hooks import AdmissionResponse, AdmitFunc, Hook, Manifest, admission_rule
from skysail.kube.api.resource_validation import is_extended_resource

_CONTAINERS = ("containers", "initContainers")


def hooks(nodes: Mapping[str, NodeSettings]) -> tuple[Hook, ...]:
    """Return all pod webhooks of an operator with these nodes."""
    return (*HOOKS, toleration_webhook.hook(nodes)) if nodes else HOOKS


def default_limits(pod_spec_path: str) -> AdmitFunc:
    """Return an admit function for objects with their pod spec at this path, such as `/spec/template/spec`."""

    def admit(object_: Manifest, old: Manifest | None) -> AdmissionResponse:
        return AdmissionResponse(
            patch=tuple(_patch(_at(object_, pod_spec_path), _at(old or {}, pod_spec_path), pod_spec_path))
        )

    return admit


def _at(object_: Manifest, path: str) -> Manifest:
    part: Any = object_
    for name in path.strip("/").split("/"):
        part = (part or {}).get(name)
    return part or {}


def _patch(spec: Manifest, old: Manifest, path: str) -> list[Manifest]:
    patch: list[Manifest] = []
    for field in _CONTAINERS:
        previous = {container.get("name"): container for container in old.get(field) or ()}
        for index, container in enumerate(spec.get(field) or ()):
            requests, limits = _amounts(container)
            set_by_us = _equal_amounts(previous.get(container.get("name"), {}))
            missing = {
                name: amount
                for name, amount in requests.items()
                if is_extended_resource(name)
                and (name not in limits or (limits[name] != amount and limits[name] == set_by_us.get(name)))
            }
            if missing:
                where = f"{path}/{field}/{index}/resources/limits"
                patch.append({"op": "add", "path": where, "value": {**limits, **missing}})
    return patch


def _amounts(container: Manifest) -> tuple[Manifest, Manifest]:
    resources = container.get("resources") or {}
    return resources.get("requests") or {}, resources.get("limits") or {}


def _equal_amounts(container: Manifest) -> Manifest:
    """Return limits that equalled their request.

    If only the request changes, such a limit was set here and follows it.
    """
    requests, limits = _amounts(container)
    return {name: amount for name, amount in limits.items() if requests.get(name) == amount}


def _missing_limit_cel(spec: str) -> str:
    """Return the CEL condition that selects objects with a missing limit. `spec` is the path of the pod spec."""
    of_container = (
        "has(c.resources) && has(c.resources.requests) && c.resources.requests.exists(r, r.contains('/') && "
        "!(has(c.resources.limits) && r in c.resources.limits && "
        "c.resources.limits[r] == c.resources.requests[r]))"
    )
    return " || ".join(f"(has({spec}.{field}) && {spec}.{field}.exists(c, {of_container}))" for field in _CONTAINERS)


def _hook(name: str, path: str, operations: tuple[str, ...], *rules: tuple[str, str]) -> Hook:
    cel = "object" + path.replace("/", ".")
    return Hook(
        name=name,
        admit=default_limits(path),
        rules=tuple(admission_rule(group, plural, *operations) for group, plural in rules),
        match_conditions=(("requests-without-limit", _missing_limit_cel(cel)),),
    )


# Resources of a pod are immutable; those of a template are not.
_ONCE = ("CREATE",)
_ALWAYS = ("CREATE", "UPDATE")

HOOKS = (
    _hook("pods", "/spec", _ONCE, ("", "pods")),
    _hook(
        "templates",
        "/spec/template/spec",
        _ALWAYS,
        ("batch", "jobs"),
        ("apps", "deployments"),
        ("apps", "statefulsets"),
        ("apps", "replicasets"),
        ("apps", "daemonsets"),
    ),
    _hook("cronjobs", "/spec/jobTemplate/spec/template/spec", _ALWAYS, ("batch", "cronjobs")),
)
