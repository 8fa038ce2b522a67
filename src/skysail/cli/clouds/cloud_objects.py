"""Objects about clouds, as commands read them. An object that the user may not read is unknown, not absent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from skysail.base.errors import UserError
from skysail.base.names import ACCOUNT_SIMULATED, ACCOUNT_STAND_IN, Label
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.kube.api.crd import CustomKind
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import NODE
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Forbidden, NotFound, NotServed

K = TypeVar("K", bound=Object)

CLOUD_NODES = {"labelSelector": f"{Label.TYPE.value}=virtual-kubelet"}


class NotInstalled(UserError):
    """The cluster does not serve a kind of Skysail."""

    exit_code = 1


class _NodeInfo(msgspec.Struct, frozen=True, rename="camel"):
    container_runtime_version: str = ""


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str
    message: str = ""


class _NodeStatus(msgspec.Struct, frozen=True, rename="camel"):
    node_info: _NodeInfo = _NodeInfo()
    conditions: tuple[_Condition, ...] = ()


class CloudNode(Object, frozen=True, gc=False):
    """A node that stands for a cloud. Its runtime version is `<provider>://<account>`."""

    status: _NodeStatus = _NodeStatus()

    @property
    def provider(self) -> str:
        return self.status.node_info.container_runtime_version.partition("://")[0]

    @property
    def account(self) -> str:
        return self.status.node_info.container_runtime_version.partition("://")[2]

    @property
    def is_free(self) -> bool:
        return self.account in {ACCOUNT_SIMULATED, ACCOUNT_STAND_IN}

    def problem(self, type_: str) -> str:
        """Return the message of a condition that is False, or an empty string."""
        rows = (row for row in self.status.conditions if row.type == type_ and row.status == "False")
        return next((row.message for row in rows), "")


async def list_claims(client: Client) -> tuple[CloudInstance, ...]:
    """Return all claims. Raises NotInstalled, or Forbidden if the user may not list them."""
    return await list_all(client, CLOUD_INSTANCE, CloudInstance)


async def list_all(client: Client, kind: CustomKind, type_: type[K]) -> tuple[K, ...]:
    """Return all objects of a kind of Skysail. Raises NotInstalled if the cluster does not serve the kind."""
    try:
        return await client.list_objects(kind.resource, "", {}, type_)
    except (NotFound, NotServed) as error:
        raise NotInstalled(
            f"This cluster has no {kind.resource.plural}: install Skysail first, or name another cluster."
        ) from error


async def find_all(client: Client, kind: CustomKind, type_: type[K]) -> tuple[K, ...] | None:
    """Return all objects of a kind of Skysail, or None if the user may not list them."""
    try:
        return await list_all(client, kind, type_)
    except Forbidden:
        return None


async def find_nodes(client: Client) -> tuple[CloudNode, ...] | None:
    """Return the nodes that stand for clouds, or None if the user may not list nodes."""
    try:
        return await client.list_objects(NODE, "", CLOUD_NODES, CloudNode)
    except Forbidden:
        return None


def nothing_paid_note(accounts: Iterable[str]) -> str:
    """Return a sentence about clouds of which none is real."""
    kinds = {"stand-ins" if account == ACCOUNT_STAND_IN else "simulated" for account in accounts}
    return f"All clouds are {' or '.join(sorted(kinds))}: nothing is paid, whatever the prices say."


def simulation_note(nodes: tuple[CloudNode, ...] | None) -> str:
    """Return a sentence that says whether prices are real, so that a simulated price is never taken for a bill."""
    if not nodes or not any(node.is_free for node in nodes):
        return ""
    if all(node.is_free for node in nodes):
        return nothing_paid_note(node.account for node in nodes)
    names = ", ".join(sorted(node.provider for node in nodes if node.is_free))
    return f"Simulated or stand-ins, so nothing is paid there: {names}."
