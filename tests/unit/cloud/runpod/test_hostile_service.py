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

from skysail.cloud.errors import Gone, ProviderError
from skysail.cloud.runpod.stand_in import replies
from skysail.cloud.runpod.stand_in.log_book import Entry
from tests.support import virtual_time
from tests.support.runpod_scene import A40, Exited, launch_spec, scene

DEEP: object = "deep"
for _ in range(200):
    DEEP = [DEEP]
VALUES = (
    None, True, -1, 0, 2**70, 1e308, float("nan"), float("inf"), "", "a/b", "../../registries", "x\0y", "x" * 100_000,
    "<img src=x>", "2026-99-99T99:99:99Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.999999-23:59",
    [], [[]], {}, {"id": "a/b"}, ["a/b"], DEEP, "9" * 400, "\r\nHost: x",
)  # fmt: skip
# Without these, nothing is launched.
CATALOGUE = {"gpus", "cpus", "networkVolumes"}
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
    """Keeps errors, and records of any level with a traceback."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            self.lines.append(self.format(record))


async def use(at) -> int:
    """Call everything. Returns the number of creates."""

    async def execute(*_: object, **__: object) -> Exited:
        return Exited()

    async def connect(*_: object, **__: object) -> None:
        raise Gone("Nothing listens.")

    at.provider.exec, at.provider.connect = execute, connect
    account, creates = at.account, 0
    for _ in range(3):
        with contextlib.suppress(ProviderError):
            await account.offers()
        made = None
        with contextlib.suppress(ProviderError):
            creates += 1
            made = await account.create(launch_spec(gpus=A40, options=(("ports", "22/tcp,80/http"),)))
        await asyncio.sleep(20.0)
        _print(at)
        await asyncio.sleep(5.0)
        with contextlib.suppress(ProviderError):
            inventory = await account.list()
            assert all(instance.id for instance in inventory.instances)
        id_ = made.id if made else next(iter(at.service.pods), "none")
        for call in (
            lambda id_=id_: account.get(id_),
            lambda id_=id_: account.exec(id_, ("true",), stdin=False, tty=False),
            lambda id_=id_: _dial(account, id_),
            lambda id_=id_: _first(account.output(id_)),
            lambda id_=id_: account.terminate(id_, 5.0),
        ):
            with contextlib.suppress(ProviderError, TimeoutError):
                async with asyncio.timeout(30.0):
                    await call()
        await asyncio.sleep(200.0)
    return creates


def _print(at) -> None:
    """Add lines to the log of each pod, and to every other one the report of its exit."""
    for number, pod in enumerate(at.service.pods.values()):
        nonce = pod.body.env.get("SKYSAIL_NONCE", "")
        lines = [f"skysail-start {nonce}", "ahoy", "", "x" * 2000, "\x1b\0\u2028", f"skysail-exit {nonce} 9999 exited"]
        report = [f"skysail-exit {nonce} 37 exited abc"]
        pod.log.write("".join(f"{line}\n" for line in [*lines, *(report * (number % 2))]).encode(), at.service.now())


async def _dial(account, id_) -> None:
    await (await account.dial(id_, 22)).close()


async def _first(pieces) -> None:
    with contextlib.suppress(StopAsyncIteration):
        await anext(pieces)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), share=st.sampled_from([0.02, 0.1, 0.4, 1.0]), is_catalogue_damaged=st.booleans())
def test_damaged_documents_are_errors_of_the_tree_and_never_a_second_launch(seed, share, is_catalogue_damaged):
    rng, errors, real, real_line = random.Random(seed), Errors(), replies.json, replies.log_line

    def hostile(content: object, share: float = share) -> bytes:
        return json.dumps(damaged(msgspec.to_builtins(content), rng, share)).encode()

    def answered(content: object, status: int = 200) -> web.Response:
        is_catalogue = isinstance(content, dict) and content.keys() <= CATALOGUE
        body = msgspec.json.encode(content) if is_catalogue and not is_catalogue_damaged else hostile(content)
        return web.Response(body=body, status=status, content_type="application/json")

    def log_line(entry: Entry) -> bytes:
        return hostile(msgspec.json.decode(real_line(entry)), max(share, 0.2))

    async def check() -> None:
        async with scene() as at:
            creates = await use(at)
            assert at.server.requests.count("POST /v2/pods") <= creates
            assert [request for request in at.server.requests if not PATHS.fullmatch(request)] == []

    logger = logging.getLogger()
    level = logger.level
    logger.addHandler(errors)
    logger.setLevel(logging.DEBUG)
    replies.json, replies.log_line = answered, log_line
    try:
        virtual_time.run(check())
    finally:
        replies.json, replies.log_line = real, real_line
        logger.removeHandler(errors)
        logger.setLevel(level)
    assert errors.lines == []
