"""Manifests are applied while the API server starts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from skysail.app import install
from skysail.app.install import apply_manifest
from skysail.kube.api.resources import SERVICE
from skysail.kube.client.errors import AlreadyExists, Conflict, NotFound, ReplyLost, Throttled, Unreachable
from tests.support import virtual_time


class Interrupted:
    """A client whose first calls fail. `found` is the object that exists."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0
        self.found: object = None

    async def apply(self, *_: object) -> Any:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.found

    create = get = find = delete = apply


async def test_apply_manifest_after_interrupted_connections_is_retried():
    client = Interrupted(Unreachable("reset"), ReplyLost("cut"))
    await apply_manifest(client, SERVICE, {})  # type: ignore[arg-type]
    assert client.calls == 3


async def test_apply_manifest_without_any_connection_raises_the_reason():
    client = Interrupted(*(Unreachable("reset") for _ in range(100)))
    with pytest.raises(Unreachable, match="reset"):
        await apply_manifest(client, SERVICE, {})  # type: ignore[arg-type]


def test_apply_manifest_after_conflicts_waits_before_each_retry():
    async def run() -> float:
        client, loop = (
            Interrupted(*(Conflict(409, "Conflict", "changed") for _ in range(10))),
            asyncio.get_running_loop(),
        )
        began = loop.time()
        await apply_manifest(client, SERVICE, {})  # type: ignore[arg-type]
        return loop.time() - began

    assert virtual_time.run(run()) > 9 * install._POLL_SECONDS


INTERRUPTIONS = (Unreachable("reset"), ReplyLost("cut"), Throttled(429, "TooManyRequests", "busy", 3.0))


def test_other_calls_of_an_installation_are_retried_as_well():
    async def run() -> None:
        definition = {"metadata": {"name": "a"}}
        await install._create(Interrupted(*INTERRUPTIONS, NotFound(404, "NotFound", "not yet")), SERVICE, definition)
        await install._create(
            Interrupted(ReplyLost("cut"), AlreadyExists(409, "AlreadyExists", "a")), SERVICE, definition
        )
        assert await install._absent_or_ours(Interrupted(*INTERRUPTIONS), [definition]) == [definition]
        established = Interrupted(*INTERRUPTIONS)
        established.found = SimpleNamespace(is_established=True)
        await install._wait_established(established, definition)

    virtual_time.run(run())
