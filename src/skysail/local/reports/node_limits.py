"""Limits of pods that the local node does not enforce, for `skysail status`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from skysail.base.names import Condition
from skysail.kube.client import kubeconfig
from skysail.kube.client.client import Client
from skysail.kube.client.errors import NotFound
from skysail.kube.client.http_transport import HttpTransport
from skysail.local.addresses import NODE


class _Condition(msgspec.Struct):
    type: str
    status: str = ""
    message: str = ""


class _Status(msgspec.Struct):
    conditions: list[_Condition] = msgspec.field(default_factory=list)


class _Node(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


async def read(path: Path) -> str:
    """Return the message of the node's condition.

    Returns an empty text if all limits are enforced, or if the node is not registered.
    """
    transport = HttpTransport(kubeconfig.from_file(path))
    try:
        node = await Client(transport).read(f"/api/v1/nodes/{NODE}", _Node)
    except NotFound:
        return ""
    finally:
        await transport.close()
    rows = [row for row in node.status.conditions if row.type == Condition.LIMITS_ENFORCED]
    return next((row.message for row in rows if row.status == "False"), "")
