"""The real Helm, and an empty cluster with a node that runs Skysail's own image."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from scripts import build_image, helm
from skysail.app import simulated_clouds
from skysail.cloud.simulated.ledger import Row
from skysail.local.control_plane.file_lock import exclusive
from skysail.local.images.environments import open_loaded_images
from tests.support.cluster import Cluster
from tests.support.kubectl import ok

if TYPE_CHECKING:
    from collections.abc import Iterator

# As most clusters: the API server does not check the certificates of kubelets, and so not that of the virtual nodes.
# As some: an owner that blocks the deletion of its children may be named only with the right to its finalizers.
_FLAGS = {
    "kube-apiserver": (
        "--kubelet-certificate-authority=",
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
    )
}

# A credential in the environment of whoever builds the image.
CANARY = "as-canary5ec2e7b1d4"

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
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("MODAL_TOKEN_SECRET", CANARY)
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


def expose_clouds(plane: Cluster) -> None:
    """Let pods reach the simulated clouds, by a second name of their socket and the token: these outlive the pods."""
    place = exposed_folder(plane)
    (place / "token").write_text(simulated_clouds.token(plane.home))
    (place / "token").chmod(0o644)
    socket = place / "clouds.sock"
    socket.unlink(missing_ok=True)
    plane.until(plane.home.simulated_clouds.exists, "the simulated clouds")
    os.link(plane.home.simulated_clouds.resolve(), socket)
    socket.chmod(0o666)


def exposed_folder(plane: Cluster) -> Path:
    return plane.home.root.parent / EXPOSED


# Settings of an operator that uses the simulated clouds of the node, and the volume that it needs for them.
CLOUD_SETTINGS = {
    "simulated_cloud_url": "/clouds/clouds.sock",
    "simulated_cloud_token_file": "/clouds/token",
}
CLOUD_MOUNT = {"name": "clouds", "mountPath": "/clouds"}


def cloud_volume(plane: Cluster) -> dict[str, Any]:
    return {"name": "clouds", "hostPath": {"path": str(exposed_folder(plane))}}


def cloud_options(plane: Cluster) -> tuple[str, ...]:
    """Return options of Helm for an operator that uses the simulated clouds of the node."""
    return (
        *(f"--set=settings.{name}={value}" for name, value in CLOUD_SETTINGS.items()),
        f"--set-json=extraVolumes={json.dumps([cloud_volume(plane)])}",
        f"--set-json=extraVolumeMounts={json.dumps([CLOUD_MOUNT])}",
    )


def creates(plane: Cluster, pod: str) -> list[Row]:
    """The instances that the cloud has created for a pod, in its own records."""
    ledger = plane.home.root / "simulated" / "modal.jsonl"
    rows = [msgspec.json.decode(line, type=Row) for line in ledger.read_bytes().splitlines()]
    return [row for row in rows if row.verb == "create" and row.pod == pod]


def offloaded(name: str) -> dict[str, Any]:
    resources = {"requests": {"nvidia.com/gpu": 1}}
    container = {"name": "main", "image": "busybox", "command": ["sleep", "3600"], "resources": resources}
    metadata = {"name": name, "annotations": {"modal-operator.io/offload": "true"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


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
