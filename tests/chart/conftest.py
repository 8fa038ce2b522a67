"""The real Helm, and an empty cluster with a node that runs Skysail's own image."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scripts import build_image, helm
from skysail.local.control_plane.file_lock import exclusive
from skysail.local.images.environments import open_loaded_images
from tests.support.cluster import Cluster
from tests.support.kubectl import ok

if TYPE_CHECKING:
    from collections.abc import Iterator

# As most clusters: the API server does not check the certificates of kubelets, and so not that of the virtual nodes.
_FLAGS = {"kube-apiserver": ("--kubelet-certificate-authority=",)}

# Folder beside the home of the cluster that pods may mount.
EXPOSED = "exposed"


@pytest.fixture(scope="session")
def binary() -> Path:
    return helm.HELM.binary()


@pytest.fixture(scope="session")
def image(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our image as `make image` builds it, with newer Debian packages if it must; once for all workers of a run."""
    shared = (
        tmp_path_factory.getbasetemp().parent
        if "PYTEST_XDIST_WORKER" in os.environ
        else tmp_path_factory.mktemp("image")
    )
    with exclusive(shared / "image.lock", waiting=lambda *_: None):
        if not (shared / "skysail" / "index.json").exists():
            built = build_image.build(build_image.IMAGES["skysail"], shared, is_release=False)
            if built.changes:
                print_line(pytestconfig, f"Image built with newer Debian packages than its lock: {built.changes}")
    return shared / "skysail"


def print_line(config: pytest.Config, line: str) -> None:
    """Print a line in the output of the run. Workers of pytest-xdist share only stderr with it."""
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


@pytest.fixture(scope="session")
def plane(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane with the node `local`, which has our image, and nothing else of Skysail."""
    root = tmp_path_factory.mktemp("chart")
    exposed = root / EXPOSED
    exposed.mkdir()
    cluster = Cluster(root / "home", extra=_FLAGS, with_node=True, with_kinds=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKYSAIL_ALLOWED_FOLDERS", str(exposed))
        with cluster:
            open_loaded_images(cluster.home.root).load(image, (), lambda _: None)
            yield cluster


class Release:
    """One release of Helm on a cluster, in its namespace."""

    def __init__(self, cluster: Cluster, binary: Path, preset: helm.Preset) -> None:
        self.cluster = cluster
        self.preset = preset
        self._binary = binary

    def helm(self, *arguments: str) -> str:
        """Run Helm in this namespace. Raises HelmFailed."""
        return helm.run(
            self._binary, *arguments, "--namespace", self.preset.namespace, kubeconfig=self.cluster.kubeconfig
        )

    def install(self, *options: str) -> str:
        _, *arguments = self.preset.arguments
        wait = ("--wait", "--timeout=10m", "--create-namespace")
        return self.helm("upgrade", "--install", self.preset.release, *arguments, *wait, *options)

    def uninstall(self, *options: str) -> str:
        return self.helm("uninstall", self.preset.release, "--wait", "--timeout=10m", *options)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return ok(self.cluster, *arguments, "-n", self.preset.namespace, stdin=stdin)

    @property
    def name(self) -> str:
        """Return the name of the operator's Deployment."""
        selector = "control-plane=controller-manager"
        return self.kubectl("get", "deployments", "-l", selector, "-o", "jsonpath={.items[0].metadata.name}")


def release(cluster: Cluster, binary: Path, name: str) -> Release:
    return Release(cluster, binary, next(preset for preset in helm.PRESETS if preset.name == name))
