"""Programs of sandboxes: the pod and the container that a definition asks the provider for."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

from modal_proto import api_pb2

from skysail.cloud.account import Member
from skysail.cloud.modal.stand_in.images import ImageConfig
from skysail.cloud.modal.stand_in.volume_store import VolumeStore
from skysail.cloud.provider import Container, Pod, Provider, ResourceLimits
from skysail.cloud.simulated.programs import ProviderProgram

_CONTAINER = "main"
_MIB = 1024 * 1024
_VCPUS_PER_CORE = 2


class SandboxPrograms:
    def __init__(self, provider: Provider, volumes: VolumeStore, now: Callable[[], float]) -> None:
        self._provider = provider
        self._volumes = volumes
        self._now = now

    def program(
        self, sandbox_id: str, definition: api_pb2.Sandbox, image: ImageConfig, env: Mapping[str, str]
    ) -> ProviderProgram:
        """Return a program that is not started yet. Raises NOT_FOUND if a volume does not exist."""
        volumes, mounts = self._volumes.mounted(definition.volume_mounts)
        command, args = argv(tuple(definition.entrypoint_args), image)
        container = Container(
            name=_CONTAINER,
            image=image.tag,
            command=command,
            args=args,
            env=tuple({**dict(image.env), "MODAL_SANDBOX_ID": sandbox_id, **env}.items()),
            working_dir=definition.workdir or image.workdir,
            mounts=mounts,
            limits=_limits(definition.resources),
            stdin=True,
            stdin_once=True,
            tty=definition.pty_info.enabled,
        )
        pod = Pod(
            uid=str(uuid.uuid5(uuid.NAMESPACE_URL, sandbox_id)),
            namespace="modal",
            name=sandbox_id.lower(),
            hostname="modal",
            volumes=volumes,
        )
        return ProviderProgram(self._provider, Member(pod, container), self._now)


def argv(arguments: tuple[str, ...], image: ImageConfig) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return command and args in the sense of Kubernetes, for arguments that follow the image's entry point."""
    arguments = arguments or image.default_args or ()
    if image.entrypoint is None:
        return (), arguments
    if not image.entrypoint:
        return arguments[:1], arguments[1:]
    return image.entrypoint, arguments


def _limits(resources: api_pb2.Resources) -> ResourceLimits:
    """Return the limits. Modal counts physical cores, each of which has two vCPUs."""
    cpu = resources.milli_cpu_max / 1000 * _VCPUS_PER_CORE if resources.milli_cpu_max else None
    return ResourceLimits(cpu=cpu, memory=resources.memory_mb_max * _MIB or None)
