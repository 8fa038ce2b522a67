"""A service with wrong documents: the account raises errors of its tree, logs none, and launches once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import re

import msgspec
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skysail.cloud.errors import ProviderError
from skysail.cloud.runpod.stand_in import replies
from tests.support import virtual_time
from tests.support.runpod_scene import A40, launch_spec, scene

DEEP: object = "deep"
for _ in range(200):
    DEEP = [DEEP]
VALUES = (
    None, True, -1, 0, 2**70, 1e308, float("nan"), float("inf"), "", "a/b", "../../registries", "x\0y", "x" * 100_000,
    "<img src=x>", "2026-99-99T99:99:99Z", [], [[]], {}, {"id": "a/b"}, ["a/b"], DEEP, "9" * 400, "\r\nHost: x",
)  # fmt: skip
_ID = "[A-Za-z0-9_-]{1,128}"
PATHS = re.compile(
    rf"(GET|POST) /v2/pods|(GET|DELETE) /v2/pods/{_ID}|GET /v2/pods/{_ID}/logs|POST /v2/pods/{_ID}/exec"
    rf"|GET /v2/catalog/[gc]pus|(GET|POST) /v2/registries|DELETE /v2/registries/{_ID}"
    r"|GET /v2/network-volumes|GET /v2/billing/pods"
)


def damaged(value: object, rng: random.Random, share: float) -> object:
    """The document with hostile values in some places."""
    if rng.random() < share:
        return rng.choice(VALUES)
    if isinstance(value, dict):
        return {key: damaged(item, rng, share) for key, item in value.items() if rng.random() >= share / 4}
    if isinstance(value, list):
        return [damaged(item, rng, share) for item in value]
    return value


class Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


async def use(at) -> int:
    """Call everything. Returns the number of creates."""
    account, creates = at.account, 0
    for _ in range(3):
        with contextlib.suppress(ProviderError):
            await account.offers()
        made = None
        with contextlib.suppress(ProviderError):
            creates += 1
            made = await account.create(launch_spec(gpus=A40, options=(("ports", "22/tcp,80/http"),)))
        await asyncio.sleep(20.0)
        with contextlib.suppress(ProviderError):
            inventory = await account.list()
            assert all(instance.id for instance in inventory.instances)
        id_ = made.id if made else next(iter(at.service.pods), "none")
        for call in (
            lambda id_=id_: account.get(id_),
            lambda id_=id_: account.exec(id_, ("true",), stdin=False, tty=False),
            lambda id_=id_: account.dial(id_, 22),
            lambda id_=id_: _first(account.output(id_)),
            lambda id_=id_: account.terminate(id_, 5.0),
        ):
            with contextlib.suppress(ProviderError, TimeoutError):
                async with asyncio.timeout(30.0):
                    await call()
        await asyncio.sleep(200.0)
    return creates


async def _first(pieces) -> None:
    with contextlib.suppress(StopAsyncIteration):
        await anext(pieces)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), share=st.sampled_from([0.02, 0.1, 0.4, 1.0]))
def test_damaged_documents_are_errors_of_the_tree_and_never_a_second_launch(seed, share):
    rng, errors, real = random.Random(seed), Errors(), replies.json

    def answered(content: object, status: int = 200) -> web.Response:
        plain = msgspec.to_builtins(content)
        body = json.dumps(damaged(plain, rng, share)).encode()
        return web.Response(body=body, status=status, content_type="application/json")

    async def check() -> None:
        async with scene() as at:
            creates = await use(at)
            assert at.server.requests.count("POST /v2/pods") <= creates
            assert [request for request in at.server.requests if not PATHS.fullmatch(request)] == []

    logging.getLogger().addHandler(errors)
    replies.json = answered
    try:
        virtual_time.run(check())
    finally:
        replies.json = real
        logging.getLogger().removeHandler(errors)
    assert errors.lines == []
