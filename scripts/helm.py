"""Helm, built from its Go module into the cache, and the manifests that the chart renders to."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from scripts.chart import CHART, ROOT
from tests.support.programs import GoProgram

HELM = GoProgram(ROOT / "tests" / "chart" / "helm", "helm.sh/helm/v3/cmd/helm")
_HEADER = "# Made by `make generate` from charts/skysail; changes here are lost.\n"
_MANAGER_KINDS = {"ConfigMap", "Deployment", "PodDisruptionBudget", "Service"}


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """One way to install the chart: release, namespace and file of values; `file` is what it renders to.

    `has_policy`: the file has the policy, too, because the document applies deploy/virtual-node-setup.yaml first, which
    has the CRD. `kubectl apply` knows a kind only after its CRD is served; otherwise the policy is a file of its own.
    """

    name: str
    release: str
    namespace: str
    file: str
    has_policy: bool = False

    @property
    def values(self) -> Path | None:
        path = CHART / "presets" / f"{self.name}.yaml"
        return path if path.exists() else None

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return release, chart and options for `helm template`, `install` or `upgrade`."""
        extra = ("--values", str(self.values)) if self.values else ()
        return (self.release, str(CHART), "--namespace", self.namespace, *extra)


DEFAULT = Preset(name="default", release="skysail", namespace="skysail-system", file="dist/install.yaml")
PRESETS = (
    DEFAULT,
    Preset(
        name="modal-operator", release="modal-operator", namespace="modal-system", file="deploy/modal-operator.yaml"
    ),
    Preset(
        name="model-operator",
        release="model-operator",
        namespace="model-operator-system",
        file="deploy/model-operator.yaml",
    ),
    Preset(
        name="mlmodel-operator",
        release="demo-mlmodel-operator",
        namespace="demo-mlmodel-operator-system",
        file="deploy/mlmodel-operator.yaml",
    ),
    Preset(
        name="runpod-controller",
        release="runpod-controller",
        namespace="kube-system",
        file="deploy/runpod-controller.yaml",
        has_policy=True,
    ),
    Preset(
        name="ml-training-operator",
        release="ml-training-operator",
        namespace="ml-operator-system",
        file="deploy/ml-training-operator.yaml",
    ),
)


UPGRADE = "tests/upgrade/0.1.yaml"
_FIRST_VERSION = "0.1.0"
FILES = (UPGRADE, *(preset.file for preset in PRESETS), "dist/default-policy.yaml", "config/manager/manager.yaml")


class HelmFailed(Exception):
    """Helm ended with an error; the message is its own."""


def run(binary: Path, *arguments: str, kubeconfig: Path | None = None) -> str:
    """Run Helm without the user's own files. Raises HelmFailed."""
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "HELM_CACHE_HOME": home, "HELM_CONFIG_HOME": home, "HELM_DATA_HOME": home}
        env["KUBECONFIG"] = str(kubeconfig or Path(home) / "none")
        done = subprocess.run([binary, *arguments], env=env, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        raise HelmFailed(done.stderr.strip())
    return done.stdout


def template(binary: Path, preset: Preset, *options: str) -> str:
    """Render a preset without hooks, which only Helm runs."""
    return run(binary, "template", *preset.arguments, "--no-hooks", "--kube-version=v1.36.3", *options)


def rendered(binary: Path) -> Iterator[tuple[str, str]]:
    """Yield each file that the chart renders to: its path and its text."""
    for preset in PRESETS:
        creates = "false" if preset.namespace == "kube-system" else "true"
        shown = template(binary, preset, "--include-crds", f"--set=createNamespace={creates}")
        documents = _in_order(yaml.safe_load_all(shown))
        yield preset.file, _text(row for row in documents if preset.has_policy or row["kind"] != "OffloadPolicy")
        if preset is DEFAULT:
            if _version() == _FIRST_VERSION:
                # Frozen with the release: from then on a test upgrades from it and goes back.
                yield UPGRADE, _text(row for row in documents if row["kind"] != "OffloadPolicy")
            yield "dist/default-policy.yaml", _text(row for row in documents if row["kind"] == "OffloadPolicy")
            manager = (row for row in documents if row["kind"] in _MANAGER_KINDS)
            yield "config/manager/manager.yaml", _text(manager)


def _version() -> str:
    return str(yaml.safe_load((CHART / "Chart.yaml").read_text())["version"])


def _in_order(documents: Iterator[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """Return the namespace first, so that one `kubectl apply` is enough."""
    return sorted((row for row in documents if row), key=lambda row: row["kind"] != "Namespace")


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block, so that people can read it."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _block)


def _text(documents: Iterator[dict[str, Any]]) -> str:
    return _HEADER + yaml.dump_all(documents, Dumper=_Dumper, sort_keys=True, width=120, allow_unicode=True)
