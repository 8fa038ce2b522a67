"""What the API server asks before it stores a pod, or a template of one. Pure.

A container that requests an extended resource such as `nvidia.com/gpu` must have a limit, too, or the API server
refuses it: such resources cannot be overcommitted. The manifests that people have name only the request; so the limit
is set to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skysail.base.settings import NodeSettings
from skysail.kinds.offload import toleration_webhook
from skysail.kube.admission.hooks import Admit, Hook, Manifest, Verdict
from skysail.kube.api.resource_validation import is_device

_CONTAINERS = ("containers", "initContainers")


def hooks(nodes: Mapping[str, NodeSettings]) -> tuple[Hook, ...]:
    """Every hook of an operator that has these nodes."""
    return (*HOOKS, toleration_webhook.hook(nodes)) if nodes else HOOKS


def set_limits(pod_spec_path: str) -> Admit:
    """An admit function for objects that have their pod spec at this path, such as `/spec/template/spec`."""

    def admit(object_: Manifest, old: Manifest | None) -> Verdict:
        return Verdict(patch=tuple(_patch(_at(object_, pod_spec_path), _at(old or {}, pod_spec_path), pod_spec_path)))

    return admit


def _at(object_: Manifest, path: str) -> Manifest:
    part: Any = object_
    for name in path.strip("/").split("/"):
        part = (part or {}).get(name)
    return part or {}


def _patch(spec: Manifest, old: Manifest, path: str) -> list[Manifest]:
    patch: list[Manifest] = []
    for field in _CONTAINERS:
        before = {container.get("name"): container for container in old.get(field) or ()}
        for index, container in enumerate(spec.get(field) or ()):
            requests, limits = _amounts(container)
            set_by_us = _equal_amounts(before.get(container.get("name"), {}))
            missing = {
                name: amount
                for name, amount in requests.items()
                if is_device(name)
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
    """Limits that equalled their request: where only the request is changed, the limit was ours, and follows it."""
    requests, limits = _amounts(container)
    return {name: amount for name, amount in limits.items() if requests.get(name) == amount}


def _lacks_limit(spec: str) -> str:
    """The same question in CEL, so that only such objects travel to us: `spec` names the pod spec."""
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
        admit=set_limits(path),
        rules=tuple(
            {
                "apiGroups": [group],
                "apiVersions": ["*"],
                "operations": list(operations),
                "resources": [plural],
                "scope": "Namespaced",
            }
            for group, plural in rules
        ),
        match_conditions=(("requests-without-limit", _lacks_limit(cel)),),
    )


# A pod's resources never change; those of a template do.
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
