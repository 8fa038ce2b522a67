"""Images that were loaded from a file: pods run in their roots."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import image_files, registry
from tests.support.kubectl import apply, ok, pod, status, until_phase

if TYPE_CHECKING:
    from tests.support.cluster import Cluster

NONCE = secrets.token_hex(8)
_SCRIPT = (
    'echo "$NONCE"; pwd; id -u; id -g; echo "$HOME"; cat etc/only-here; touch /made && echo made; ls /home /usr/share'
)
_PASSWD = b"root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\n"


def run(node: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("skysail")), "image", *words, "--home", str(node.home.root)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "300"})


def skysail_image(node: Cluster, *words: str) -> str:
    done = run(node, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def load(node: Cluster, folder: Path, name: str, **config: object) -> None:
    files = {**image_files.programs(), "etc/passwd": _PASSWD, "etc/only-here": b"image\n", "usr/share/x": b""}
    links = image_files.layer_of((image_files.entry("var/run", b"2", link="/run"), b""))
    image_files.write_layout(folder, registry.image(config, registry.layer(files), links), name)
    assert f"Loaded docker.io/{name}" in skysail_image(node, "load", str(folder))


def test_pod_of_a_loaded_image_runs_in_its_root_with_its_own_settings(node, namespace, tmp_path):
    image = f"team/app:{NONCE}"
    load(
        node,
        tmp_path / "layout",
        image,
        Entrypoint=["/bin/sh", "-c"],
        Cmd=[_SCRIPT],
        Env=[f"NONCE={NONCE}"],
        User="app",
        WorkingDir="/",
    )
    manifest = pod("a", container={"image": image})
    del manifest["spec"]["containers"][0]["command"]
    apply(node, namespace, manifest)
    until_phase(node, namespace, "a", "Failed")  # /home is not in the image
    lines = ok(node, "logs", "a", "-n", namespace).splitlines()
    assert lines[:6] == [NONCE, "/", "1000", "1001", "/home/app", "image"]
    assert "made" not in lines, "another user than root writes nothing in the root of the image"
    assert "x" in lines
    (row,) = status(node, namespace, "a")["containerStatuses"]
    assert row["imageID"].startswith("sha256:")
    assert image in skysail_image(node, "list")


def test_pod_of_a_loaded_image_has_its_token_exec_and_keeps_the_image(node, namespace, tmp_path):
    image = f"team/kept:{NONCE}"
    load(node, tmp_path / "layout", image, Cmd=["/bin/sleep", "10000"])
    manifest = pod("a", container={"image": image}, restart="Always")
    del manifest["spec"]["containers"][0]["command"]
    apply(node, namespace, manifest)
    until_phase(node, namespace, "a", "Running")
    token = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
    assert ok(node, "exec", "a", "-n", namespace, "--", "/bin/cat", token) == namespace
    refused = run(node, "rm", image)
    assert refused.returncode != 0
    assert "used by a pod" in refused.stderr
    ok(node, "delete", "pod", "a", "-n", namespace)
    node.until(lambda: run(node, "rm", image).returncode == 0, "the image to go")
    assert image not in skysail_image(node, "list")
