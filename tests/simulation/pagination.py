"""Lists in pages: all pages of one list show the same moment, until that moment is forgotten."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

import msgspec

from tests.simulation import statuses

if TYPE_CHECKING:
    from collections.abc import Mapping

    from skysail.kube.api.resources import Resource
    from tests.simulation.selectors import Selector
    from tests.simulation.world import World


class Position(msgspec.Struct, frozen=True):
    """Where a list goes on: the content of a continue token."""

    rv: int
    start: tuple[str, str]
    v: str = "meta.k8s.io/v1"


class Page(msgspec.Struct, frozen=True):
    items: list[dict[str, Any]]
    version: int
    token: str = ""


class Pages:
    """The moments that lists in progress look at."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._moments: dict[tuple[Resource, int], dict[tuple[str, str], dict[str, Any]]] = {}

    def page(self, resource: Resource, selector: Selector, query: Mapping[str, str]) -> Page:
        limit = int(query.get("limit") or 0)
        token = query.get("continue")
        position = _read(token) if token else Position(self._world.version, ("", ""))
        objects = self._moment(resource, position.rv) if token else self._world.objects[resource]
        rest = [(key, obj) for key, obj in sorted(objects.items()) if key >= position.start and selector.matches(obj)]
        if not limit or len(rest) <= limit:
            return Page([obj for _, obj in rest], position.rv)
        self._moments.setdefault((resource, position.rv), dict(objects))
        return Page([obj for _, obj in rest[:limit]], position.rv, self.token(Position(position.rv, rest[limit][0])))

    def forget(self) -> None:
        self._moments.clear()

    def token(self, position: Position) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")

    def _moment(self, resource: Resource, version: int) -> dict[tuple[str, str], dict[str, Any]]:
        try:
            return self._moments[resource, version]
        except KeyError:
            raise statuses.expired(
                "The provided continue parameter is too old to display a consistent list result. "
                "You can start a new list without the continue parameter."
            ) from None


def _read(token: str) -> Position:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)), type=Position)
    except (binascii.Error, msgspec.MsgspecError, ValueError) as error:
        raise statuses.bad_request(f"invalid continue token: continue key is not valid: {error}") from error
