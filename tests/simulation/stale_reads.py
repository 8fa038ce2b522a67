"""A connection to an API server that lags: for a while its lists tell how things were, and its watches tell nothing."""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING

from tests.simulation.api import ApiModel
from tests.simulation.pagination import Pages

if TYPE_CHECKING:
    from skysail.kube.client.transport import Reply, Request
    from tests.simulation.watches import Refused, Watch
    from tests.simulation.world import World

# Shorter than what a silent watch is given: this server is slow, and not dead.
_LAG_SECONDS = 60.0


class StaleApi(ApiModel):
    """Begins so many changes `back`. Writes, and reads of one object, are true: the real server promises that."""

    def __init__(self, world: World, user: str, back: int) -> None:
        super().__init__(world, user)
        self._end = asyncio.get_running_loop().time() + _LAG_SECONDS
        self._then = ApiModel(_before(world, back), user)

    async def send(self, request: Request) -> Reply:
        is_list = request.method == "GET" and not self._target(request.path).name
        return await (self._then.send(request) if is_list and self._left else super().send(request))

    async def open(self, request: Request) -> Watch | Refused:
        await asyncio.sleep(self._left)
        return await super().open(request)

    @property
    def _left(self) -> float:
        return max(0.0, self._end - asyncio.get_running_loop().time())


def _before(world: World, back: int) -> World:
    """The world as it was so many changes ago. It is only looked at."""
    then = copy.copy(world)
    then.pages = Pages(then)
    then.objects = {resource: {} for resource in world.objects}
    for change in world.history.journal[: len(world.history.journal) - back]:
        metadata = change.after["metadata"]
        key = metadata.get("namespace", ""), metadata["name"]
        if change.gone:
            del then.objects[change.resource][key]
        else:
            then.objects[change.resource][key] = change.after
        then.version = change.version
    return then
