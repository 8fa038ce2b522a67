"""Descriptions of Functions' containers, from a deployed definition and the objects that it names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
from modal_proto import api_pb2

from skysail.cloud.modal.stand_in.apps import App
from skysail.cloud.modal.stand_in.container import ContainerSpec, limits
from skysail.cloud.modal.stand_in.functions import FunctionStore, StoredFunction
from skysail.cloud.modal.stand_in.images import ImageStore
from skysail.cloud.modal.stand_in.mounts import MountStore
from skysail.cloud.modal.stand_in.secret_store import SecretStore
from skysail.cloud.modal.stand_in.volume_store import VolumeStore

# Describes the container of a task id and a rank, whose socket is in a folder.
MakeSpec = Callable[[str, int, Path], ContainerSpec]


class ContainerSpecs(msgspec.Struct, frozen=True, kw_only=True):
    functions: FunctionStore
    images: ImageStore
    secrets: SecretStore
    volumes: VolumeStore
    mounts: MountStore

    def maker(self, stored: StoredFunction, app: App) -> MakeSpec:
        """Return a function that describes containers of the current definition.

        Raises NOT_FOUND if an object of the definition is missing.
        """
        definition = stored.definition
        assert definition is not None, "checked by the caller"
        image = self.images.config(definition.image_id)
        files = tuple(self.mounts.files(list(definition.mount_ids)))
        volumes, mounts = self.volumes.mounted(definition.volume_mounts)
        env: dict[str, str] = {}
        for secret_id in definition.secret_ids:
            env |= self.secrets.values(secret_id)
        layout = self.functions.layout(app)

        def make(task_id: str, rank: int, folder: Path) -> ContainerSpec:
            arguments = api_pb2.ContainerArguments(
                task_id=task_id,
                function_id=stored.id,
                app_id=app.id,
                function_def=definition,
                environment_name=app.environment,
                app_layout=layout,
            )
            return ContainerSpec(
                task_id=task_id,
                rank=rank,
                image=image,
                env=env,
                files=files,
                volumes=volumes,
                mounts=mounts,
                arguments=arguments.SerializeToString(),
                limits=limits(definition.resources),
                folder=folder,
            )

        return make
