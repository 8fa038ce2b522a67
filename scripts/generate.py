"""Writes every generated file of the project; with `--check` only says which ones are stale (exit code 1).

A row is a path and its text. What is generated is committed, so that people read it without running anything.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import yaml

from scripts import chart, diagrams, helm, pages, reference
from skysail.app import manifests
from skysail.app.kinds import ALL_KINDS, COMPATIBLE_KINDS
from skysail.base.settings import Settings
from skysail.claims.limits.offload_policy import OFFLOAD_POLICY
from skysail.kube.api import crd
from skysail.kube.api.resources import NODE
from skysail.node.registration import registrar

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Made by `make generate` from the types in src/skysail; changes here are lost.\n"


# Folders that also have files of their own.
_SHARED_FOLDERS = {Path("charts/skysail/files"), Path("charts/modal-operator")}
KUSTOMIZATIONS = {
    "config/crd": [f"bases/{kind.file_name}" for kind in ALL_KINDS],
    "config/rbac": ["role.yaml", "tenant_roles.yaml"],
    "config/manager": ["manager.yaml"],
    "config/default": ["namespace.yaml", "../crd", "../rbac", "../manager"],
}


class Row(msgspec.Struct, frozen=True):
    path: str
    text: str


def rows() -> Iterator[Row]:
    for kind, definition in zip(ALL_KINDS, manifests.definitions(), strict=True):
        text = manifest_text(definition)
        yield Row(f"config/crd/bases/{kind.file_name}", text)
        yield Row(f"charts/skysail/crds/{kind.file_name}", text)
    for kind, definition in zip(COMPATIBLE_KINDS, manifests.compatible_definitions(), strict=True):
        yield Row(f"config/crd/compat/{kind.file_name}", manifest_text(definition))
    yield Row("config/rbac/role.yaml", manifest_text(*manifests.rules()))
    yield Row("config/rbac/tenant_roles.yaml", manifest_text(*manifests.tenant_roles()))
    yield Row("config/rbac/compat_tenant_roles.yaml", manifest_text(*manifests.compatible_tenant_roles()))
    # With the kind of the policy that deploy/runpod-controller.yaml has.
    policy = manifests.definitions()[ALL_KINDS.index(OFFLOAD_POLICY)]
    yield Row("deploy/virtual-node-setup.yaml", manifest_text(policy, virtual_node("runpod-virtual-node")))
    yield Row("config/default/namespace.yaml", manifest_text(manifests.namespace()))
    yield Row("docs/reference/api.md", reference.api_page((*ALL_KINDS, *COMPATIBLE_KINDS)))
    yield Row("docs/reference/names.md", reference.names_page())
    yield Row("docs/reference/settings.md", reference.settings_page())
    yield Row("docs/reference/commands.md", pages.commands_page())
    yield Row("docs/adr/README.md", pages.decisions_page(ROOT))
    for path, text in pages.kind_pages(ROOT, (*ALL_KINDS, *COMPATIBLE_KINDS)):
        yield Row(path, text)
    for path, text in diagrams.files(ROOT):
        yield Row(path, text)
    for path, text in chart.files():
        yield Row(path, text)
    for folder, resources in KUSTOMIZATIONS.items():
        yield Row(f"{folder}/kustomization.yaml", kustomization(resources))


def rendered_rows() -> Iterator[Row]:
    """Yield what the chart renders to. Builds Helm if it is not in the cache."""
    binary = helm.HELM.binary()
    for path, text in helm.rendered(binary):
        yield Row(path, text)


def virtual_node(name: str) -> crd.Manifest:
    """Return the Node of a cloud as the operator registers it, for a cluster that wants it before the operator."""
    settings = Settings().nodes[name]
    taint, _, effect = settings.taint.rpartition(":")
    key, _, value = taint.partition("=")
    labels = {"kubernetes.io/hostname": name, **registrar.VIRTUAL_LABELS, **settings.labels}
    return {
        "apiVersion": NODE.api_version,
        "kind": NODE.kind,
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [{"key": key, "value": value, "effect": effect}]},
    }


def kustomization(resources: Iterable[str]) -> str:
    return manifest_text(
        {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": list(resources)}
    )


def manifest_text(*manifests: crd.Manifest) -> str:
    plain = [msgspec.to_builtins(manifest) for manifest in manifests]
    return HEADER + yaml.safe_dump_all(plain, sort_keys=True, width=120, allow_unicode=True)


def stale(root: Path, rows: Iterable[Row]) -> list[str]:
    """Return files that differ from what the types say, and files in generated folders that no type stands behind."""
    wanted = {row.path: row.text for row in rows}
    differing = [path for path, text in wanted.items() if _read(root / path) != text]
    folders = {Path(path).parent for path in wanted if path.endswith(".yaml")} - _SHARED_FOLDERS
    present = {str(file.relative_to(root)) for folder in folders for file in (root / folder).glob("*.yaml")}
    return sorted({*differing, *(present - wanted.keys())})


def main(arguments: list[str]) -> int:
    if "--check" not in arguments:
        _write(rows())
        # After the files of the chart itself, which Helm reads.
        _write(rendered_rows())
        return 0
    checked = list(rows())
    if helm.HELM.is_built:
        checked += rendered_rows()
    else:
        sys.stdout.write("Helm is not built yet, so rendered manifests are not compared: `make test-chart` does.\n")
        checked += kept_rows()
    found = stale(ROOT, checked)
    for path in found:
        sys.stderr.write(f"{path} is not what the types say: run `make generate`.\n")
    return 1 if found else 0


def _write(rows: Iterable[Row]) -> None:
    for row in rows:
        file = ROOT / row.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(row.text)


def kept_rows() -> Iterator[Row]:
    """Yield the rendered files as they are."""
    for path in helm.FILES:
        yield Row(path, _read(ROOT / path) or "")


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
