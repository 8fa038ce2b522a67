"""Generated files of the chart: policy rules, schema of the values, dashboard, and the thin chart `modal-operator`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from scripts import dashboard
from skysail.app import bridge, crds, manifests
from skysail.app.kinds import ALL_KINDS
from skysail.base.settings import Settings
from skysail.cli.clouds import cleanup, draining
from skysail.kube.api import rbac
from skysail.kube.api.resources import CLUSTER_ROLE, SECRET
from skysail.node.registration import node_lease

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "skysail"
ALIAS_CHART = ROOT / "charts" / "modal-operator"
MAPPING = CHART / "files" / "values-to-settings.yaml"

Schema = dict[str, Any]
Values = dict[str, Any]

# Values whose type the default does not show.
_FREE_OBJECTS = {
    "serviceAccount.annotations",
    "podAnnotations",
    "podLabels",
    "podSecurityContext",
    "securityContext",
    "resources",
    "nodeSelector",
    "affinity",
    "runtimeImages",
    "proxy.resources",
    "defaultPolicy.spec",
    "metrics.labels",
    "dashboard.labels",
}
_ENUMS = {
    "image.pullPolicy": ["Always", "IfNotPresent", "Never"],
    "service.type": ["ClusterIP", "NodePort", "LoadBalancer"],
    "rbac.secrets": ["cluster", "namespaced"],
}
_OBJECT_LISTS = {
    *("imagePullSecrets", "tolerations", "topologySpreadConstraints", "extraEnv", "extraVolumes", "extraVolumeMounts"),
    "rbac.extraRules",
}
_KNOWN: dict[str, Schema] = {
    **{path: {"type": "object"} for path in _FREE_OBJECTS},
    **{path: {"type": "array", "items": {"type": "object"}} for path in _OBJECT_LISTS},
    **{path: {"enum": values} for path, values in _ENUMS.items()},
    "podDisruptionBudget.minAvailable": {"type": ["integer", "string"]},
}


def files() -> Iterator[tuple[str, str]]:
    """Yield each generated file of the charts: its path and its text."""
    yield "charts/skysail/files/rules.yaml", rules_text()
    yield "charts/skysail/files/dashboard.json", dashboard.text()
    yield "charts/skysail/values.schema.json", schema_text()
    preset = (CHART / "presets" / "modal-operator.yaml").read_text()
    yield (
        "charts/modal-operator/values.yaml",
        with_overrides((CHART / "values.yaml").read_text(), yaml.safe_load(preset)),
    )


def rules_text() -> str:
    """Return the policy rules that the code declares, by the role that the chart grants them to."""
    cluster = manifests.cluster_rules()
    tenants = {
        role["metadata"]["name"].rpartition("-")[2]: role["rules"]
        for role in manifests.tenant_roles()
        if role["kind"] == CLUSTER_ROLE.kind
    }
    groups = {
        "cluster": rbac.rules(rule for rule in cluster if rule.resource != SECRET),
        "secrets": rbac.rules(rule for rule in cluster if rule.resource == SECRET),
        "namespace": rbac.rules(manifests.namespace_rules()),
        "nodeLeases": rbac.rules(node_lease.LEASE_POLICY_RULES),
        "bridge": rbac.rules(bridge.POLICY_RULES),
        "tenants": tenants,
        "cleanUp": rbac.rules(cleanup.POLICY_RULES),
        "drain": rbac.rules(draining.POLICY_RULES),
        "apply": rbac.rules(crds.POLICY_RULES),
        "crds": [kind.resource.crd_name for kind in ALL_KINDS],
    }
    header = "# Made by `make generate` from the code; changes here are lost.\n"
    return header + yaml.safe_dump(groups, sort_keys=True, width=120, allow_unicode=True)


def values() -> Values:
    return dict(yaml.safe_load((CHART / "values.yaml").read_text()))


def mapping() -> dict[str, str]:
    """Return the setting of each value, by the path of the value."""
    return dict(yaml.safe_load(MAPPING.read_text()))


def schema_text() -> str:
    """Return the JSON schema of the values. Types come from the defaults, and from the settings that values set."""
    settings = msgspec.json.schema(Settings)
    schema = _object_schema(values(), "", settings["$defs"]["Settings"]["properties"])
    schema["properties"]["global"] = {"type": "object"}
    schema["properties"]["settings"] = {"$ref": "#/$defs/Settings", "description": "Settings of the operator."}
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Values of Skysail",
        **schema,
        "$defs": settings["$defs"],
    }
    return json.dumps(whole, indent=1, sort_keys=True) + "\n"


def _object_schema(node: Mapping[str, Any], path: str, settings: Mapping[str, Schema]) -> Schema:
    properties = {name: _value_schema(value, f"{path}.{name}".lstrip("."), settings) for name, value in node.items()}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _value_schema(value: Any, path: str, settings: Mapping[str, Schema]) -> Schema:
    setting = mapping().get(path)
    if setting is not None:
        described = {key: part for key, part in settings[setting].items() if key != "default"}
        return {"anyOf": [described, {"type": "null"}]}
    if path in _KNOWN:
        return _KNOWN[path]
    if isinstance(value, dict):
        return _object_schema(value, path, settings)
    if isinstance(value, list):
        return {"type": "array", "items": {"type": "string"}}
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return {"type": names[type(value)]}


def with_overrides(text: str, overrides: Values) -> str:
    """Return the text of a values file with other defaults. Comments stay."""
    lines = text.splitlines()
    for path, value in _leaves(overrides, ()):
        _override(lines, path, value)
    header = "# Made by `make generate` from charts/skysail and its preset modal-operator; changes here are lost.\n"
    return header + "\n".join(lines) + "\n"


def _leaves(node: Values, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in node.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _override(lines: list[str], path: tuple[str, ...], value: Any) -> None:
    """Replace the default of one value, which must be on one line."""
    depth, start = 0, 0
    for number, line in enumerate(lines):
        found = re.match(r"( *)([A-Za-z]+):", line)
        if found is None or len(found[1]) != 2 * depth or found[2] != path[depth] or number < start:
            continue
        depth, start = depth + 1, number
        if depth == len(path):
            lines[number] = f"{found[1]}{found[2]}: {json.dumps(value)}"
            return
    raise ValueError(f"{'.'.join(path)} is not a value of the chart: change the preset.")
