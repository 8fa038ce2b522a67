"""Tasks with Docker and kind, for `make` and `inv`. Without the tool, each ends with one sentence (exit code 2)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLUSTER = "skysail"
_TEST_POD = "config/samples/v1_pod_gpu-training.yaml"
_MISSING = {
    "docker": "install Docker or Podman (CONTAINER_TOOL=podman), or load the image without one: `skysail image load`",
    "podman": "install Podman, or use Docker (CONTAINER_TOOL=docker)",
    "kind": "install kind (https://kind.sigs.k8s.io), or use a cluster without it: `make up`",
    "helm": "install Helm 3 (https://helm.sh), or apply dist/install.yaml: `make deploy`",
    "kubectl": "install kubectl, or use `.venv/bin/skysail kubectl` with `make up`",
}


class ToolMissing(Exception):
    """A program is not on PATH. The message says what to do."""


def image() -> str:
    return os.environ.get("IMG") or "localhost/skysail:0.1.0"


def tool(name: str) -> str:
    """Return the path of a program. Raises ToolMissing."""
    found = shutil.which(name)
    if found is None:
        raise ToolMissing(f"{name} is not on PATH: {_MISSING.get(name, 'install it')}.")
    return found


def run(name: str, *arguments: str) -> None:
    """Run a program in the root folder. Raises ToolMissing, or CalledProcessError if it fails."""
    subprocess.run([tool(name), *arguments], cwd=ROOT, check=True)  # noqa: S603 (the user's own tools)


def container_tool() -> str:
    return os.environ.get("CONTAINER_TOOL") or "docker"


def docker_build() -> None:
    """Build the image IMG from the Dockerfile."""
    run(container_tool(), "build", "--tag", image(), ".")


def docker_push() -> None:
    """Push the image IMG."""
    run(container_tool(), "push", image())


def docker_buildx() -> None:
    """Build the image IMG for PLATFORMS and push it."""
    platforms = os.environ.get("PLATFORMS") or "linux/amd64"
    run(container_tool(), "buildx", "build", "--push", f"--platform={platforms}", "--tag", image(), ".")


def kind_create() -> None:
    """Create a kind cluster."""
    run("kind", "create", "cluster", "--name", CLUSTER)


def kind_load() -> None:
    """Load the image IMG into the kind cluster."""
    run("kind", "load", "docker-image", image(), "--name", CLUSTER)


def kind_delete() -> None:
    """Delete the kind cluster."""
    run("kind", "delete", "cluster", "--name", CLUSTER)


def deploy() -> None:
    """Install the chart `modal-operator` with pretended clouds."""
    chart = ("upgrade", "--install", "modal-operator", "charts/modal-operator")
    repository, _, tag = image().rpartition(":")
    values = (f"--set=image.repository={repository}", f"--set=image.tag={tag}", "--set=testing.mockModal=true")
    run("helm", *chart, "--namespace=modal-system", "--create-namespace", "--wait", *values)


def gpu_pod_check() -> None:
    """Send a sample GPU pod to the pretended cloud, and wait until it runs."""
    run("kubectl", "apply", "-f", _TEST_POD)
    run("kubectl", "wait", "-f", _TEST_POD, "--for=jsonpath={.status.phase}=Running", "--timeout=120s")
    run("kubectl", "delete", "-f", _TEST_POD)


def e2e() -> None:
    """Run the whole path on kind: cluster, image, installation, GPU pod."""
    for step in (kind_create, docker_build, kind_load, deploy, gpu_pod_check, kind_delete):
        step()


TASKS: dict[str, Callable[[], None]] = {
    "docker-build": docker_build,
    "docker-push": docker_push,
    "docker-buildx": docker_buildx,
    "kind-create": kind_create,
    "kind-load": kind_load,
    "kind-delete": kind_delete,
    "deploy": deploy,
    "test-gpu-pod": gpu_pod_check,
    "test-e2e": e2e,
}


def main(arguments: Sequence[str]) -> int:
    try:
        for name in arguments:
            TASKS[name]()
    except ToolMissing as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
