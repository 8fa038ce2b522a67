"""What the API server asks before it stores a pod, or a template of one. Pure.

A container that requests an extended resource such as `nvidia.com/gpu` must have a limit, too, or the API server
refuses it: such resources cannot be overcommitted. The manifests that people have name only the request; so the limit
is set to it.
"""

from __future__ import annotations

from typing import Any

from skysail.kube.admission import Hook, Manifest, Verdict

_CONTAINERS = ("containers", "initContainers")


def set_limits(pod_spec_path: str) -> Any:
    """An admit function for objects that have their pod spec at this path, such as `/spec/template/spec`."""

    def admit(object_: Manifest) -> Verdict:
        spec: Any = object_
        for part in pod_spec_path.strip("/").split("/"):
            spec = (spec or {}).get(part)
        return Verdict(patch=tuple(_patch(spec or {}, pod_spec_path)))

    return admit


def _patch(spec: Manifest, path: str) -> list[Manifest]:
    patch: list[Manifest] = []
    for field in _CONTAINERS:
        for index, container in enumerate(spec.get(field) or ()):
            resources = container.get("resources") or {}
            limits = resources.get("limits") or {}
            missing = {
                name: amount
                for name, amount in (resources.get("requests") or {}).items()
                if is_extended(name) and name not in limits
            }
            if missing:
                where = f"{path}/{field}/{index}/resources/limits"
                patch.append({"op": "add", "path": where, "value": {**limits, **missing}})
    return patch


def is_extended(resource: str) -> bool:
    """Whether this is no resource of Kubernetes itself: it has a domain, and not Kubernetes' own."""
    domain, slash, _ = resource.partition("/")
    return bool(slash) and not (domain == "kubernetes.io" or domain.endswith(".kubernetes.io"))


def _lacks_limit(spec: str) -> str:
    """The same question in CEL, so that only such objects travel to us: `spec` names the pod spec."""
    of_container = (
        "has(c.resources) && has(c.resources.requests) && c.resources.requests.exists(r, r.contains('/') && "
        "!(has(c.resources.limits) && r in c.resources.limits))"
    )
    return " || ".join(f"(has({spec}.{field}) && {spec}.{field}.exists(c, {of_container}))" for field in _CONTAINERS)


def _hook(name: str, path: str, *rules: tuple[str, str]) -> Hook:
    cel = "object" + path.replace("/", ".")
    return Hook(
        name=name,
        admit=set_limits(path),
        rules=tuple(
            {
                "apiGroups": [group],
                "apiVersions": ["*"],
                "operations": ["CREATE"],
                "resources": [plural],
                "scope": "Namespaced",
            }
            for group, plural in rules
        ),
        match_conditions=(("requests-without-limit", _lacks_limit(cel)),),
    )


HOOKS = (
    _hook("pods", "/spec", ("", "pods")),
    _hook(
        "templates",
        "/spec/template/spec",
        ("batch", "jobs"),
        ("apps", "deployments"),
        ("apps", "statefulsets"),
        ("apps", "replicasets"),
        ("apps", "daemonsets"),
    ),
    _hook("cronjobs", "/spec/jobTemplate/spec/template/spec", ("batch", "cronjobs")),
)
