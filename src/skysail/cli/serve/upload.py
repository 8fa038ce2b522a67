"""Upload of a local model into a PVC: a short-lived pod receives the bytes and proves them by their digest."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from skysail.base.errors import UserError
from skysail.cli.serve import manifests
from skysail.core import pod_pending
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import PERSISTENT_VOLUME_CLAIM, POD
from skysail.kube.api.workloads import Pod
from skysail.kube.client import exec_stream
from skysail.kube.client.client import Client
from skysail.kube.client.errors import AlreadyExists, NotFound
from skysail.kube.client.kubeconfig import Access

_CHUNK = 256 * 1024
_POLL_SECONDS = 0.5
_START_SECONDS = 300.0
_PERCENT = 100
_STEP = 10  # percent between two lines of progress

Echo = Callable[[str], None]


class UploadFailed(UserError):
    """The model was not uploaded. The message says why."""

    exit_code = 1


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes to send. A folder is sent as a tar, which is unpacked on the volume."""

    file: BinaryIO
    size: int
    digest: str
    name: str
    is_folder: bool

    @property
    def version(self) -> str:
        return self.digest[:12]

    @property
    def path(self) -> str:
        """Path of the model on the volume. Each version has a folder of its own."""
        return f"{self.version}/{self.name}"


@contextmanager
def payload(source: Path) -> Iterator[Payload]:
    """Open a file, or pack a folder into a temporary tar. Raises UploadFailed."""
    try:
        if source.is_dir():
            with tempfile.TemporaryFile() as file:
                # Files in place of links: a snapshot of Hugging Face has links to files outside of its folder.
                with tarfile.open(fileobj=file, mode="w", dereference=True) as tar:
                    tar.add(source, arcname=_safe(source.resolve().name), filter=_plain)
                yield _measured(file, source.resolve().name, is_folder=True)
        else:
            with source.open("rb") as file:
                yield _measured(file, source.name, is_folder=False)
    except OSError as error:
        raise UploadFailed(f"{source} cannot be read: {error.strerror}.") from error


def _safe(name: str) -> str:
    """Return the name for paths on the volume, without characters that mean something in shells and addresses."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("-.") or "model"


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out owners and times, so that the same folder always has the same digest."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def _measured(file: BinaryIO, name: str, *, is_folder: bool) -> Payload:
    file.seek(0)
    digest, size = hashlib.sha256(), 0
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
    file.seek(0)
    return Payload(file=file, size=size, digest=digest.hexdigest(), name=_safe(name), is_folder=is_folder)


async def upload(
    client: Client, access: Access, model: str, namespace: str, content: Payload, image: str, echo: Echo
) -> None:
    """Copy the payload to the model's PVC, which is created if it is missing. Raises UploadFailed."""
    with suppress(AlreadyExists):
        await client.create(PERSISTENT_VOLUME_CLAIM, manifests.pvc(model, namespace, content.size), Object)
    pod = await client.create(POD, manifests.upload_pod(model, namespace, image, secrets.token_hex(3)), Pod)
    try:
        await _until_running(client, pod, echo)
        await _send(access, pod, content, echo)
    finally:
        with suppress(NotFound):
            await client.delete(POD, pod, Pod)


async def _until_running(client: Client, pod: Pod, echo: Echo) -> None:
    shown = ""
    try:
        async with asyncio.timeout(_START_SECONDS):
            while True:
                seen = await client.get(POD, pod.metadata.namespace, pod.metadata.name, Pod)
                if seen.status.phase == "Running":
                    return
                if seen.status.phase in {"Failed", "Succeeded"}:
                    raise UploadFailed(f"Pod {pod.metadata.name}, which receives the model, has ended.")
                reason = pod_pending.pending_reason(seen, f"Pod {pod.metadata.name}")
                if reason is not None and reason.message != shown:
                    shown = reason.message
                    echo(shown)
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError as error:
        raise UploadFailed(
            f"Pod {pod.metadata.name}, which receives the model, did not start: {shown or 'no reason known'}"
        ) from error


async def _send(access: Access, pod: Pod, content: Payload, echo: Echo) -> None:
    place = (pod.metadata.namespace, pod.metadata.name, manifests.CONTAINER)
    answer = await exec_stream.run(access, *place, command(content), _chunks(content, echo))
    if answer.failure:
        raise UploadFailed(f"The upload failed: {answer.stderr.strip() or answer.failure}.")
    received = answer.stdout.split()[0] if answer.stdout.split() else "nothing"
    if received != content.digest:
        raise UploadFailed(f"The upload is damaged: the cluster received {received}, not {content.digest}. Try again.")


def command(content: Payload) -> list[str]:
    """Return the shell command that receives exactly the payload, and prints its digest."""
    folder = f"{manifests.MOUNT}/{content.version}"
    unpack = "tar -xf .part && rm .part" if content.is_folder else f"mv .part {content.name}"
    steps = (f"mkdir -p {folder}", f"cd {folder}", f"head -c {content.size} > .part", "sha256sum < .part", unpack)
    return ["sh", "-c", " && ".join(steps)]


async def _chunks(content: Payload, echo: Echo) -> AsyncIterator[bytes]:
    sent, shown = 0, 0
    while chunk := content.file.read(_CHUNK):
        yield chunk
        sent += len(chunk)
        percent = _PERCENT * sent // content.size
        if percent >= shown + _STEP and content.size > _CHUNK:
            shown = percent - percent % _STEP
            echo(f"  uploaded {shown}%")
