from __future__ import annotations

from skysail.app import install
from skysail.kube.api.resources import SERVICE
from skysail.kube.client.errors import NotFound


class Server:
    """A server that knows no admission policies, as Kubernetes before 1.30."""

    async def apply(self, *_: object) -> None:
        raise NotFound(404, "NotFound", "the server could not find the requested resource")


async def test_apply_warnings_server_without_their_kind_gives_none(caplog):
    await install._apply_warnings(Server(), [(SERVICE, {})])
    assert "no warnings for ignored fields" in caplog.text
