from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from skysail.cloud.account import Inventory
from skysail.cloud.modal import connection
from skysail.cloud.modal.account import ModalAccount
from skysail.cloud.modal.connection import TOKEN_ID, TOKEN_SECRET, Connection
from skysail.cloud.modal.launch import VolumeMount
from skysail.cloud.modal.launcher import volume


def credentials(name: str) -> dict[str, str]:
    return {TOKEN_ID: name, TOKEN_SECRET: "s"}


@pytest.mark.parametrize("is_rejected", [False, True])
async def test_credentials_set_during_a_connect_are_used(monkeypatch, is_rejected):
    connecting, go_on = asyncio.Event(), asyncio.Event()

    async def from_credentials(token: str, _: str) -> str:
        connecting.set()
        await go_on.wait()
        if is_rejected and token == "old":
            raise ConnectionError("token revoked")
        return token

    async def hydrate() -> None:
        pass

    def from_context(client: str) -> Any:
        return SimpleNamespace(hydrate=SimpleNamespace(aio=hydrate), name=f"workspace-{client}")

    sdk = SimpleNamespace(
        Client=SimpleNamespace(from_credentials=SimpleNamespace(aio=from_credentials)),
        Workspace=SimpleNamespace(from_context=from_context),
    )
    monkeypatch.setattr(connection, "modal", sdk)
    found = Connection(credentials("old"), "")
    client = asyncio.ensure_future(found.client())
    await connecting.wait()
    found.set_credentials(credentials("new"))
    go_on.set()
    assert (await client, found.account) == ("new", "workspace-new/default")


@pytest.mark.parametrize(("is_shared", "environment"), [(False, "prod"), (True, "prod"), (True, "")])
def test_a_volume_is_of_the_environment_and_only_an_own_one_is_created(monkeypatch, is_shared, environment):
    calls: list[Any] = []
    monkeypatch.setattr("modal.Volume.from_name", lambda name, **fields: calls.append((name, fields)))
    volume(VolumeMount("data", "/data", is_shared=is_shared), environment)
    want = {"environment_name": environment or None, "create_if_missing": not is_shared}
    assert calls == [("data", want)]


@pytest.mark.parametrize(("is_complete", "left"), [(True, {"sb-2"}), (False, {"sb-1", "sb-2", "sb-3"})])
async def test_positions_of_ended_sandboxes_are_forgotten_with_a_complete_inventory(monkeypatch, is_complete, left):
    account = ModalAccount(credentials("a"), cluster="c")
    account._output._positions = {(name, "stdout"): "1" for name in ("sb-1", "sb-2", "sb-3")}
    states = {"sb-1": "ended", "sb-2": "running"}
    listed = tuple(SimpleNamespace(id=name, state=state) for name, state in states.items())

    async def list_apps() -> dict[str, Any]:
        return {}

    async def list_all(_: object) -> Inventory:
        return Inventory(listed, complete=is_complete)  # type: ignore[arg-type]

    monkeypatch.setattr(account._apps, "list", list_apps)
    monkeypatch.setattr(account._inventory, "list_all", list_all)
    await account.list()
    assert {name for name, _ in account._output._positions} == left
