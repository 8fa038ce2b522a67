"""Certificates and authorities of the node's servers, replaced while the servers serve."""

from __future__ import annotations

import asyncio
import itertools
import random
import ssl
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from skysail.kube import certificates
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import CONFIG_MAP
from skysail.kube.certificates import KeyPair
from skysail.kube.client.client import Client
from skysail.kube.client.kubeconfig import load_certificate
from skysail.node.server.tls import ReloadingContext, ServingCertificate
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time

HERE = "127.0.0.1"
HOUR = timedelta(hours=1)
# Long, because a machine may be busy with other things; no test passes by waiting.
TIMEOUT_SECONDS = 600


def authority(name: str) -> KeyPair:
    return certificates.certificate_authority(name, now=datetime.now(UTC), valid=HOUR)


OLD, NEW = authority("old"), authority("new")


def serving(by: KeyPair) -> KeyPair:
    return certificates.server(by, [HERE], now=datetime.now(UTC), valid=HOUR)


@asynccontextmanager
async def served(front: ReloadingContext):
    """A server that tells each caller by whose certificate it knows him."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        known = writer.get_extra_info("ssl_object").getpeercert() or {}
        writer.write(repr(dict(part[0] for part in known.get("subject", ())).get("commonName")).encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, HERE, 0, ssl=front.context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def ask(
    port: int, trusted: KeyPair, login: KeyPair | None, newest: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED
) -> str:
    """What the server says; or `refused`."""
    tls = ssl.create_default_context(cadata=trusted.certificate.decode())
    tls.maximum_version = newest
    if login is not None:
        own = certificates.client(login, "ann", now=datetime.now(UTC), valid=HOUR)
        load_certificate(tls, own.certificate, own.key)
    try:
        reader, writer = await asyncio.open_connection(HERE, port, ssl=tls)
        writer.write(b"?")
        said = await reader.read()
        writer.close()
    except (OSError, ssl.SSLError):
        return "refused"
    return said.decode() or "refused"


async def test_both_certificate_and_authority_change_under_a_server():
    reloading_context = ReloadingContext(ssl.CERT_OPTIONAL)
    async with served(reloading_context) as port:
        assert await ask(port, OLD, OLD) == "refused"
        reloading_context.use(serving(OLD), OLD.certificate.decode())
        assert [await ask(port, OLD, login) for login in (OLD, NEW, None)] == ["'ann'", "refused", "None"]
        reloading_context.use(serving(NEW), NEW.certificate.decode())
        assert [await ask(port, NEW, login) for login in (OLD, NEW, None)] == ["refused", "'ann'", "None"]
        assert await ask(port, OLD, NEW) == "refused"


async def test_who_requires_a_certificate_lets_nobody_in_without_one():
    reloading_context = ReloadingContext(ssl.CERT_REQUIRED)
    async with served(reloading_context) as port:
        reloading_context.use(serving(OLD), OLD.certificate.decode())
        assert [await ask(port, OLD, login) for login in (OLD, NEW, None)] == ["'ann'", "refused", "refused"]
        reloading_context.use(serving(OLD), "")
        assert [await ask(port, OLD, login) for login in (OLD, NEW, None)] == ["refused"] * 3


async def test_what_cannot_be_read_changes_nothing():
    reloading_context = ReloadingContext(ssl.CERT_OPTIONAL)
    async with served(reloading_context) as port:
        reloading_context.use(serving(OLD), OLD.certificate.decode())
        with pytest.raises(ssl.SSLError):
            reloading_context.use(serving(OLD), "-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")
        assert await ask(port, OLD, OLD) == "'ann'"


async def test_nobody_speaks_a_version_that_resumes_sessions_without_a_ticket():
    reloading_context = ReloadingContext(ssl.CERT_OPTIONAL)
    async with served(reloading_context) as port:
        reloading_context.use(serving(OLD), OLD.certificate.decode())
        assert await ask(port, OLD, OLD, ssl.TLSVersion.TLSv1_2) == "refused"
        assert await ask(port, OLD, OLD, ssl.TLSVersion.TLSv1_3) == "'ann'"


class Harness:
    def __init__(self) -> None:
        self.world = World()
        self.user = Client(ApiModel(self.world))
        self.own = serving(OLD)

    async def tell(self, callers: KeyPair, front_proxy: KeyPair) -> None:
        data = {
            "client-ca-file": callers.certificate.decode(),
            "requestheader-client-ca-file": front_proxy.certificate.decode(),
        }
        name = "extension-apiserver-authentication"
        if self.world.objects.get(CONFIG_MAP):
            await self.user.merge_patch(CONFIG_MAP, "kube-system", name, {"data": data}, Object)
            return
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "kube-system"}}
        await self.user.create(CONFIG_MAP, {**made, "data": data}, Object)

    @asynccontextmanager
    async def identity(self):
        serving_certificate = ServingCertificate(Client(ApiModel(self.world)), lambda: self.own, random.Random(1))
        task = asyncio.create_task(serving_certificate.run())
        await asyncio.wait_for(serving_certificate.ready.wait(), TIMEOUT_SECONDS)
        yield serving_certificate
        task.cancel()
        await asyncio.wait([task])


async def until(port: int, login: KeyPair, said: str) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await ask(port, OLD, login) != said:
            pass


async def test_the_servers_believe_whom_the_api_server_believes_now():
    harness = Harness()
    await harness.tell(OLD, NEW)
    async with (
        harness.identity() as identity,
        served(identity.callers) as callers,
        served(identity.front_proxy) as front_proxy,
    ):
        assert (await ask(callers, OLD, OLD), await ask(callers, OLD, NEW)) == ("'ann'", "refused")
        assert (await ask(front_proxy, OLD, OLD), await ask(front_proxy, OLD, NEW)) == ("refused", "'ann'")
        await harness.tell(NEW, OLD)
        await until(callers, NEW, "'ann'")
        assert (await ask(callers, OLD, OLD), await ask(front_proxy, OLD, OLD)) == ("refused", "'ann'")


def test_a_new_certificate_of_its_own_is_found_in_time_and_a_torn_one_is_read_again():
    async def play() -> None:
        harness, reads = Harness(), []

        def read() -> KeyPair:
            reads.append(asyncio.get_running_loop().time())
            if len(reads) == 1:
                raise ValueError("torn")
            return harness.own

        serving_certificate = ServingCertificate(Client(ApiModel(harness.world)), read, random.Random(1))
        task = asyncio.create_task(serving_certificate.run())
        await serving_certificate.ready.wait()
        await asyncio.sleep(1300)
        assert [round(later - earlier) for earlier, later in itertools.pairwise(reads)] == [1, 600, 600]
        task.cancel()
        await asyncio.wait([task])

    virtual_time.run(play())


async def test_a_cluster_that_tells_nothing_believes_tokens_only():
    async with Harness().identity() as identity, served(identity.callers) as port:
        assert (await ask(port, OLD, OLD), await ask(port, OLD, None)) == ("refused", "None")
