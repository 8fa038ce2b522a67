"""Writes every generated file of the project; with `--check` only says which ones are stale (exit code 1).

A row is a path and its text. What is generated is committed, so that people read it without running anything.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import yaml

from scripts import reference
from skysail.app import manifests
from skysail.app.kinds import ALL_KINDS, COMPATIBLE_KINDS
from skysail.kube.api import crd

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Made by `make generate` from the types in src/skysail; changes here are lost.\n"


class Row(msgspec.Struct, frozen=True):
    path: str
    text: str


def rows() -> Iterator[Row]:
    for kind in ALL_KINDS:
        text = manifest_text(crd.manifest(kind))
        yield Row(f"config/crd/bases/{kind.file_name}", text)
        yield Row(f"charts/skysail/crds/{kind.file_name}", text)
    for kind, definition in zip(COMPATIBLE_KINDS, manifests.compatible_definitions(), strict=True):
        yield Row(f"config/crd/compat/{kind.file_name}", manifest_text(definition))
    yield Row("config/rbac/role.yaml", manifest_text(*manifests.rules()))
    yield Row("config/rbac/tenant_roles.yaml", manifest_text(*manifests.tenant_roles()))
    yield Row("config/rbac/compat_tenant_roles.yaml", manifest_text(*manifests.compatible_tenant_roles()))
    yield Row("docs/reference/api.md", reference.api_page((*ALL_KINDS, *COMPATIBLE_KINDS)))
    yield Row("docs/reference/names.md", reference.names_page())
    yield Row("docs/reference/settings.md", reference.settings_page())


def manifest_text(*manifests: crd.Manifest) -> str:
    plain = [msgspec.to_builtins(manifest) for manifest in manifests]
    return HEADER + yaml.safe_dump_all(plain, sort_keys=True, width=120, allow_unicode=True)


def stale(root: Path) -> list[str]:
    """Files that differ from what the types say, and files in generated folders that no type stands behind."""
    wanted = {row.path: row.text for row in rows()}
    differing = [path for path, text in wanted.items() if _read(root / path) != text]
    folders = {Path(path).parent for path in wanted if path.endswith(".yaml")}
    present = {str(file.relative_to(root)) for folder in folders for file in (root / folder).glob("*.yaml")}
    return sorted({*differing, *(present - wanted.keys())})


def main(arguments: list[str]) -> int:
    if "--check" in arguments:
        found = stale(ROOT)
        for path in found:
            sys.stderr.write(f"{path} is not what the types say: run `make generate`.\n")
        return 1 if found else 0
    for row in rows():
        file = ROOT / row.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(row.text)
    return 0


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
