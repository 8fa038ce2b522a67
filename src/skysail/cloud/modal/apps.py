"""Apps of one cluster at Modal: one for the sandboxes of each namespace, and one for each gang."""

from __future__ import annotations

import modal

from skysail.cloud.modal import errors, identity
from skysail.cloud.modal.connection import Connection

_CALL_SECONDS = 20.0


class Apps:
    def __init__(self, connection: Connection, cluster: str) -> None:
        self._connection = connection
        self._cluster = cluster

    async def list(self) -> dict[str, modal.App]:
        """Return the live Apps of the cluster by their id. Raises an error of `cloud.errors`."""
        client = await self._connection.client()
        name = self._connection.environment
        if name:
            environment = modal.Environment.from_name(name, client=client)
        else:
            environment = modal.Environment.from_context(client=client)
        try:
            apps: list[modal.App] = await errors.bounded(environment.apps.list.aio(), _CALL_SECONDS, "list its Apps")
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error
        prefix = identity.app_prefix(self._cluster)
        return {app.app_id: app for app in apps if app.app_id and app.name and app.name.startswith(prefix)}

    def is_gang(self, app: modal.App) -> bool:
        return identity.is_gang(app.name or "", self._cluster)

    async def named(self, name: str) -> tuple[modal.App, ...]:
        """Return the live Apps with this name, also one whose deploy has not ended."""
        return tuple(app for app in (await self.list()).values() if app.name == name)
