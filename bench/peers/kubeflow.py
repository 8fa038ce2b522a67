"""Kubeflow's training-operator, as it was released, with its own kinds.

It waits for the certificate of its admission server before it works. Nothing is sent to that server here: the API
server would have to reach it by a Service. So it is spared a call for each job.
"""

from __future__ import annotations

import asyncio
import base64
import shutil
from pathlib import Path

import yaml

from skysail.kube.api.objects import Object
from skysail.kube.api.resources import CRD, NAMESPACE, SECRET, Resource
from skysail.kube.cache.discovery import CrdInfo
from skysail.kube.client.client import Client
from tests.support.programs import GoProgram

PROGRAM = GoProgram(
    Path(__file__).parent / "kubeflow", "github.com/kubeflow/training-operator/cmd/training-operator.v1"
)
USER = "kubeflow"
PYTORCH_JOB = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
# Its defaults are one thread, and 20 requests a second.
TUNED = ("--controller-threads=32", "--kube-api-qps=1000", "--kube-api-burst=2000")

_MODULE = "github.com/kubeflow/training-operator"
_SPACE = "kubeflow"
_CERTIFICATE = "training-operator-webhook-cert"
_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
# A constant of the program.
_MOUNTED = Path("/tmp/k8s-webhook-server/serving-certs")
_POLL_SECONDS = 0.1


class _Secret(Object, frozen=True):
    data: dict[str, str] | None = None


async def install(client: Client) -> None:
    """Its kinds, and what it expects to find."""
    folder = await asyncio.to_thread(PROGRAM.sources, _MODULE)
    kinds = [yaml.safe_load(path.read_text()) for path in (folder / "manifests/base/crds").glob("kubeflow.org_*.yaml")]
    for kind in kinds:
        await client.apply(CRD, kind, Object)
    for kind in kinds:
        await _established(client, kind["metadata"]["name"])
    secret = {"name": _CERTIFICATE, "namespace": _SPACE}
    hooks = {"name": "validator.training-operator.kubeflow.org"}
    await client.create(NAMESPACE, _bare(NAMESPACE, {"name": _SPACE}), Object)
    await client.create(SECRET, _bare(SECRET, secret), Object)
    await client.create(_WEBHOOKS, _bare(_WEBHOOKS, hooks), Object)


async def mount(client: Client) -> None:
    """Its certificate, which it makes itself, at the place where its own manifest mounts it."""
    while True:
        made = await client.get(SECRET, _SPACE, _CERTIFICATE, _Secret)
        if made.data is not None:
            return await asyncio.to_thread(_write, made.data)
        await asyncio.sleep(_POLL_SECONDS)


def unmount() -> None:
    shutil.rmtree(_MOUNTED.parent, ignore_errors=True)


async def _established(client: Client, kind: str) -> None:
    while True:
        if (await client.get(CRD, "", kind, CrdInfo)).is_established:
            return
        await asyncio.sleep(_POLL_SECONDS)


def _write(files: dict[str, str]) -> None:
    _MOUNTED.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (_MOUNTED / name).write_bytes(base64.b64decode(content))


def _bare(resource: Resource, metadata: dict[str, str]) -> dict[str, object]:
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
