"""Sandboxes that Modal lists, and those that it does not have any more."""

from __future__ import annotations

from types import SimpleNamespace

import modal
from modal import exception

from skysail.cloud.modal import internals
from skysail.cloud.modal.inventory import SandboxInventory

CLUSTER = "0123abcd"


class Connection:
    async def client(self) -> None:
        return None


async def test_sandbox_that_modal_does_not_have_is_looked_up_once(monkeypatch):
    asked: list[str] = []

    async def from_id(sandbox_id: str, client: object) -> None:
        asked.append(sandbox_id)
        raise exception.NotFoundError("no such sandbox")

    async def list_rows(_client: object, _app: str) -> list[internals.SandboxRow]:
        return []

    monkeypatch.setattr(internals, "list_rows", list_rows)
    monkeypatch.setattr(modal.Sandbox, "from_id", SimpleNamespace(aio=from_id))
    inventory = SandboxInventory(Connection(), CLUSTER)  # type: ignore[arg-type]
    inventory.created("sb-1", {"owner": "skysail", "claim": "c-0", "cluster": CLUSTER, "created": "1.0"})
    for _ in range(3):
        assert (await inventory.list_all(["ap-1"])).instances == ()
    assert asked == ["sb-1"]
