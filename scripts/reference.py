"""The reference pages: every kind with its fields, and every name that Skysail writes or reads."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterable, Iterator

import msgspec

from skysail.base import names
from skysail.base.settings import Settings
from skysail.kube.api import crd
from skysail.kube.api.conventions import walk
from skysail.kube.api.crd import CustomKind
from skysail.kube.api.schema import INT_OR_STRING, PRESERVE, RULES, Schema

_HEADER = "<!-- Made by `make generate`; changes here are lost. -->\n\n"
_BOUNDS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "minLength": "length from {}",
    "maxLength": "length up to {}",
    "minItems": "from {} items",
    "maxItems": "up to {} items",
    "maxProperties": "up to {} entries",
    "pattern": "matches `{}`",
    "format": "{}",
}


def api_page(kinds: Iterable[CustomKind]) -> str:
    parts = ["# API reference\n\nEvery kind, every field. `kubectl explain` prints the same.\n"]
    parts += [_kind(kind) for kind in kinds]
    return _HEADER + "\n".join(parts)


def names_page() -> str:
    lines = ["# Names\n\nEvery label, annotation, finalizer, condition, reason, event and metric.\n"]
    for group in names.ALL:
        lines.append(f"## {group.__name__}\n\n{(group.__doc__ or '').strip()}\n\n| name | meaning |\n|---|---|")
        lines += [f"| `{_cell(name.value)}` | {_cell(name.description)} |" for name in group]
        lines.append("")
    return _HEADER + "\n".join(lines)


def _kind(kind: CustomKind) -> str:
    resource = kind.resource
    schema = crd.manifest(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    scope = "namespaced" if resource.namespaced else "cluster-scoped"
    short = f", short: {', '.join(f'`{name}`' for name in kind.short_names)}" if kind.short_names else ""
    lines = [
        f"## {resource.kind}\n",
        f"`{resource.api_version}`, {scope}, plural `{resource.plural}`{short}.\n",
        f"{schema['description']}\n",
    ]
    for part in ("spec", "status"):
        node = schema["properties"][part]
        lines += [f"### {resource.kind}.{part}\n", "| field | type | default | |", "|---|---|---|---|"]
        lines += [_field(path.removeprefix(f"{part}."), child) for path, child in _fields(node, part)]
        lines += ["", *_rules(node, part)]
    return "\n".join(lines)


def _fields(node: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    required = {f"{path}.{name}" for path, part in walk(node, path) for name in part.get("required", ())}
    for child, part in walk(node, path):
        if "description" in part and child != path and not child.endswith("[]"):
            yield child, {**part, "isRequired": child in required}


def _field(path: str, node: Schema) -> str:
    default = f"`{json.dumps(node['default'])}`" if "default" in node else ("required" if node["isRequired"] else "")
    bounds = ", ".join([text.format(node[word]) for word, text in _BOUNDS.items() if word in node])
    about = f"{node['description']} ({bounds})" if bounds else node["description"]
    return f"| `{path}` | {_cell(_type(node))} | {default} | {_cell(about)} |"


def _type(node: Schema) -> str:
    if "enum" in node:
        return " or ".join(f"`{value}`" for value in node["enum"])
    if node.get(INT_OR_STRING):
        return "integer or string"
    if node.get(PRESERVE):
        return "free-form"
    if node["type"] == "array":
        return f"list of {_type(node['items'])}"
    if "additionalProperties" in node:
        return f"map to {_type(node['additionalProperties'])}"
    return str(node["type"])


def _rules(node: Schema, path: str) -> list[str]:
    found = [f"- {rule['message']}." for _, part in walk(node, path) for rule in part.get(RULES, ())]
    return ["Rules:\n", *found, ""] if found else []


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def settings_page() -> str:
    lines = [
        "# Settings of the operator\n",
        "Each can come from a flag of `skysail run`, from the environment, or from a file (`--config settings.yaml`,",
        "`name: value` lines). Flags win over the environment, which wins over the file. A list is separated by commas",
        "in the environment, and a map is written `key=value,key=value`. The flag of a list is in the singular, and is",
        "given several times.\n",
        "| name | environment | default | meaning |",
        "|---|---|---|---|",
    ]
    hints = typing.get_type_hints(Settings, include_extras=True)
    for field in msgspec.structs.fields(Settings):
        about = next(meta.description for meta in hints[field.name].__metadata__ if meta.description)
        default = "" if field.default in (None, (), msgspec.NODEFAULT) else f"`{json.dumps(field.default)}`"
        lines.append(f"| `{field.name}` | `SKYSAIL_{field.name.upper()}` | {default} | {about} |")
    return _HEADER + "\n".join([*lines, ""])
