"""Upload of a local model into a PVC: a short-lived pod receives the bytes and proves them by their digest."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress

from skysail.base.settings import Settings as OperatorSettings
from skysail.cli.revision_history import history
from skysail.cli.serve import manifests
from skysail.cli.serve.packing import CHUNK, VERSION_DIGITS, Payload, UploadFailed
from skysail.core import pod_pending
from skysail.kinds.serving.api.types import ML_MODEL, MODEL_DEPLOYMENT, MLModel, Model, ModelDeployment
from skysail.kinds.serving.objects import PersistentVolumeClaim
from skysail.kinds.serving.spec.config import serving_config
from skysail.kinds.serving.spec.desired import desired_model
from skysail.kube.api import quantities
from skysail.kube.api.resources import PERSISTENT_VOLUME_CLAIM, POD
from skysail.kube.api.workloads import Pod
from skysail.kube.client import exec_stream
from skysail.kube.client.client import Client
from skysail.kube.client.errors import AlreadyExists, Forbidden, Invalid, NotFound
from skysail.kube.client.kubeconfig import Access

_POLL_SECONDS = 0.5
_START_SECONDS = 300.0
_PERCENT = 100
# Of the C library, in any program.
_NO_SPACE = "no space left on device"
_STEP = 10  # percent between two lines of progress

# A folder of a version: the beginning of a digest.
_VERSION_GLOB = "[0-9a-f]" * VERSION_DIGITS

Echo = Callable[[str], None]


class VolumeFull(UploadFailed):
    """The volume has no room for the payload."""


async def upload(
    client: Client, access: Access, model: str, namespace: str, content: Payload, image: str, echo: Echo
) -> None:
    """Copy the payload to the model's PVC, which is created if it is missing. Raises UploadFailed.

    If the volume is full, versions that no model uses make room.
    """
    pvc = await volume(client, model, namespace, content)
    pod = await client.create(POD, manifests.upload_pod(model, namespace, image, secrets.token_hex(3)), Pod)
    try:
        await _until_running(client, pod, echo)
        removed: list[str] = []
        try:
            await _send(access, pod, content, pvc, echo)
        except VolumeFull:
            with suppress(Forbidden):  # what is in use is unknown then
                kept = {content.version, *await versions_in_use(client, pvc.metadata.name, namespace)}
                removed = await _remove_versions(access, pod, kept)
            if not removed:
                raise
            echo(
                f"PVC {pvc.metadata.name} was full, so earlier versions were deleted from it: {', '.join(removed)}. "
                "To return to one of them, serve its file again."
            )
            content.file.seek(0)
            await _send(access, pod, content, pvc, echo)
    finally:
        with suppress(NotFound):
            await client.delete(POD, pod, Pod)


async def versions_in_use(client: Client, pvc: str, namespace: str) -> set[str]:
    """Return the folders of the PVC that any model of the namespace serves or should serve. Raises KubeError."""
    models: list[Model] = [
        *await client.list_objects(MODEL_DEPLOYMENT.resource, namespace, {}, ModelDeployment),
        *await client.list_objects(ML_MODEL.resource, namespace, {}, MLModel),
    ]
    uris = [desired_model(model, serving_config(OperatorSettings())).want.uri for model in models]
    for model in models:
        if number := model.status.revision:
            uris += [entry.want.uri for entry in await history(client, model) if entry.number == number]
    folders = (uri.removeprefix(f"pvc://{pvc}/") for uri in uris if uri.startswith(f"pvc://{pvc}/"))
    return {folder.partition("/")[0] for folder in folders}


async def volume(client: Client, model: str, namespace: str, content: Payload) -> PersistentVolumeClaim:
    """Return the model's PVC, created or expanded for this payload. Raises UploadFailed if it stays too small."""
    wanted = manifests.pvc(model, namespace, content.size)
    try:
        return await client.create(PERSISTENT_VOLUME_CLAIM, wanted, PersistentVolumeClaim)
    except AlreadyExists:
        pass
    found = await client.get(PERSISTENT_VOLUME_CLAIM, namespace, manifests.pvc_name(model), PersistentVolumeClaim)
    if quantities.parse(size_of(found)) >= quantities.parse(wanted["spec"]["resources"]["requests"]["storage"]):
        return found
    patch = {"spec": {"resources": wanted["spec"]["resources"]}}
    try:
        return await client.merge_patch(
            PERSISTENT_VOLUME_CLAIM, namespace, found.metadata.name, patch, PersistentVolumeClaim
        )
    except (Forbidden, Invalid) as error:
        # Another version may still fit. The volume has room for several of the first one's size.
        if quantities.parse(size_of(found)) < content.room:
            raise UploadFailed(full(found, content)) from error
        return found


def size_of(pvc: PersistentVolumeClaim) -> str:
    """Return the size of the volume, or the requested size while there is no volume."""
    return str(pvc.status.capacity.get("storage") or pvc.size or "0")


def full(pvc: PersistentVolumeClaim, content: Payload) -> str:
    """Return the sentence for a volume that has no room for the payload."""
    name, namespace = pvc.metadata.name, pvc.metadata.namespace
    return (
        f"PVC {name} has {size_of(pvc)}, which is too small for another {content.room / 1e6:.0f} MB: serve the model "
        f"with another --name, or delete the PVC with `kubectl delete pvc {name} -n {namespace}` and try again."
    )


async def _until_running(client: Client, pod: Pod, echo: Echo) -> None:
    message = ""
    try:
        async with asyncio.timeout(_START_SECONDS):
            while True:
                seen = await client.get(POD, pod.metadata.namespace, pod.metadata.name, Pod)
                if seen.status.phase == "Running":
                    return
                if seen.status.phase in {"Failed", "Succeeded"}:
                    raise UploadFailed(f"Pod {pod.metadata.name}, which receives the model, has ended.")
                reason = pod_pending.pending_reason(seen, f"Pod {pod.metadata.name}")
                if reason is not None and reason.message != message:
                    message = reason.message
                    echo(message)
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError as error:
        raise UploadFailed(
            f"Pod {pod.metadata.name}, which receives the model, did not start: {message or 'no reason known'}"
        ) from error


async def _send(access: Access, pod: Pod, content: Payload, pvc: PersistentVolumeClaim, echo: Echo) -> None:
    place = (pod.metadata.namespace, pod.metadata.name, manifests.CONTAINER)
    answer = await exec_stream.run(access, *place, command(content), _chunks(content, echo))
    if answer.failure and _NO_SPACE in answer.stderr.lower():
        raise VolumeFull(full(pvc, content))
    if answer.failure:
        raise UploadFailed(f"The upload failed: {answer.stderr.strip() or answer.failure}.")
    received = answer.stdout.split()[0] if answer.stdout.split() else "nothing"
    if received != content.digest:
        raise UploadFailed(f"The upload is damaged: the cluster received {received}, not {content.digest}. Try again.")


async def _remove_versions(access: Access, pod: Pod, kept: Iterable[str]) -> list[str]:
    """Delete all other versions, and return them."""
    place = (pod.metadata.namespace, pod.metadata.name, manifests.CONTAINER)
    answer = await exec_stream.run(access, *place, removal(kept))
    return answer.stdout.split()


def removal(kept: Iterable[str]) -> list[str]:
    """Return the shell command that deletes the folders of all other versions, and prints their names."""
    # A version that somebody else wrote into the manifest may have any characters, but no folder here.
    names = "|".join(sorted(version for version in kept if re.fullmatch(r"[0-9a-f]+", version)))
    folders = f'cd {manifests.MOUNT} && for version in {_VERSION_GLOB}; do [ -d "$version" ] || continue;'
    case = f'case "$version" in {names}) ;; *) rm -rf "$version" && echo "$version" ;; esac; done'
    return ["sh", "-c", f"{folders} {case}"]


def command(content: Payload) -> list[str]:
    """Return the shell command that receives exactly the payload, and prints its digest.

    It replaces the model as a whole, because a server may start from the same version now. After a failure nothing of
    the payload is left on the volume.
    """
    name = content.name
    unpack = "tar -xf .part -C .new" if content.is_folder else f"mv .part .new/{name}"
    prepare = ("rm -rf .part .new", "mkdir .new")
    take = (f"head -c {content.size} > .part", "sha256sum < .part", unpack)
    replace = (f"rm -rf {name}", f"mv .new/{name} {name}", "rm -rf .part .new")
    folder = f"{manifests.MOUNT}/{content.version}"
    receive = " && ".join((*prepare, *take, *replace))
    return ["sh", "-c", f"mkdir -p {folder} && cd {folder} && {{ {receive} || {{ rm -rf .part .new; exit 1; }}; }}"]


async def _chunks(content: Payload, echo: Echo) -> AsyncIterator[bytes]:
    sent, printed = 0, 0
    while chunk := content.file.read(CHUNK):
        yield chunk
        sent += len(chunk)
        percent = _PERCENT * sent // content.size
        if percent >= printed + _STEP and content.size > CHUNK:
            printed = percent - percent % _STEP
            echo(f"  uploaded {printed}%")
