from __future__ import annotations

import asyncio
import contextlib
import random
import socket

import pytest

from skysail.kube.api.objects import Meta
from skysail.local.network import dns_server, dns_wire, dns_zone
from skysail.local.network.dns_wire import Code
from skysail.local.network.dns_zone import OwnPod
from skysail.local.network.objects import Service, ServicePort, ServiceSpec
from tests.support import virtual_time
from tests.unit.local.network.wire import decode, query

ZONE = "shop.svc.cluster.local"
A, PTR, AAAA, SRV, EVERYTHING, HTTPS = 1, 12, 28, 33, 255, 65


def service(name, **spec):
    return Service(metadata=Meta(name=name, namespace="shop"), spec=ServiceSpec(**spec))


SERVICES = [
    service("web", cluster_ip="10.96.0.7", ports=(ServicePort(80, "http"),)),
    service("job", cluster_ip="None", publish_not_ready_addresses=True),
    service("outside", type="ExternalName", external_name="db.example.com"),
    service("inside", type="ExternalName", external_name=f"web.{ZONE}"),
]


class Known:
    """Names that a test can change."""

    def __init__(self) -> None:
        self.pods = [OwnPod("shop", "job-0", "job", "10.244.0.5")]
        self.names = dns_server.ZoneCache(lambda: dns_zone.build(SERVICES, [], self.pods))

    def add(self, hostname: str, address: str) -> None:
        self.pods.append(OwnPod("shop", hostname, "job", address))
        self.names.touch()

    def responder(self, **options) -> dns_server.DnsResponder:
        return dns_server.DnsResponder(self.names, rng=random.Random(0), **options)


def ask(dns_responder: dns_server.DnsResponder, name: str, type_: int = A):
    message = query(name, type_)
    return dns_responder.answer(dns_wire.read(message), message)


@pytest.mark.parametrize(
    ("name", "type_", "code", "records"),
    [
        (f"web.{ZONE}", A, Code.OK, [(f"web.{ZONE}", A, "10.96.0.7")]),
        (f"WEB.{ZONE}", A, Code.OK, [(f"WEB.{ZONE}", A, "10.96.0.7")]),
        (f"web.{ZONE}", EVERYTHING, Code.OK, [(f"web.{ZONE}", A, "10.96.0.7")]),
        (f"web.{ZONE}", AAAA, Code.OK, []),
        (f"web.{ZONE}", HTTPS, Code.OK, []),
        (f"job-0.job.{ZONE}", A, Code.OK, [(f"job-0.job.{ZONE}", A, "10.244.0.5")]),
        (f"job-0.job.{ZONE}", AAAA, Code.OK, []),
        (f"job.{ZONE}", A, Code.OK, [(f"job.{ZONE}", A, "10.244.0.5")]),
        (
            f"_http._tcp.web.{ZONE}",
            SRV,
            Code.OK,
            [(f"_http._tcp.web.{ZONE}", SRV, (0, 100, 80, f"web.{ZONE}"))],
        ),
        (f"_http._tcp.web.{ZONE}", A, Code.OK, []),
        ("7.0.96.10.in-addr.arpa", PTR, Code.OK, [("7.0.96.10.in-addr.arpa", PTR, f"web.{ZONE}")]),
        ("8.0.96.10.in-addr.arpa", PTR, Code.NO_SUCH_NAME, []),
        (f"outside.{ZONE}", A, Code.OK, [(f"outside.{ZONE}", 5, "db.example.com")]),
        (
            f"inside.{ZONE}",
            A,
            Code.OK,
            [(f"inside.{ZONE}", 5, f"web.{ZONE}"), (f"web.{ZONE}", A, "10.96.0.7")],
        ),
        (ZONE, A, Code.OK, []),
        (f"nobody.{ZONE}", A, Code.NO_SUCH_NAME, []),
        (f"nobody.{ZONE}", AAAA, Code.NO_SUCH_NAME, []),
        ("example.com", A, Code.NO_SUCH_NAME, []),
        ("", A, Code.NO_SUCH_NAME, []),
    ],
)
async def test_what_is_answered(name, type_, code, records):
    answer = decode(await ask(Known().responder(), name, type_))
    assert (answer.code, answer.records) == (code, records)


async def test_the_address_of_a_port_is_told_with_it():
    answer = decode(await ask(Known().responder(), f"_http._tcp.web.{ZONE}", SRV))
    assert answer.extra == [(f"web.{ZONE}", A, "10.96.0.7")]


def test_a_pod_that_has_not_come_yet_is_waited_for_until_it_comes():
    async def late() -> tuple[float, list[str]]:
        known = Known()
        asked = [asyncio.create_task(ask(known.responder(), f"job-1.job.{ZONE}", type_)) for type_ in (A, AAAA)]
        await asyncio.sleep(1)
        known.add("job-7", "10.244.0.8")  # another one is none of its business
        await asyncio.sleep(1.5)
        assert not any(task.done() for task in asked)
        known.add("job-1", "10.244.0.9")
        first, second = [decode(await task) for task in asked]
        assert second.code == Code.OK
        return asyncio.get_running_loop().time(), [record[2] for record in first.records + second.records]

    assert virtual_time.run(late()) == (2.5, ["10.244.0.9"])


def test_a_pod_that_never_comes_does_not_exist_after_three_seconds():
    async def never() -> tuple[int, float]:
        answer = decode(await ask(Known().responder(), f"job-1.job.{ZONE}"))
        return answer.code, asyncio.get_running_loop().time()

    assert virtual_time.run(never()) == (Code.NO_SUCH_NAME, 3.0)


class Outside:
    """The machine's name server: knows one name."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def ask(self, message: bytes) -> bytes | None:
        question = dns_wire.read(message)
        self.asked.append(question.name)
        if question.name != "example.com":
            return None
        return dns_wire.answer(question, Code.OK, [dns_wire.address("example.com", "203.0.113.1")])


async def test_only_names_of_others_are_asked_for_outside():
    outside = Outside()
    dns_responder = Known().responder(upstream=outside)
    assert decode(await ask(dns_responder, "example.com")).records == [("example.com", A, "203.0.113.1")]
    assert decode(await ask(dns_responder, "unknown.example")).code == Code.NO_SUCH_NAME
    await ask(dns_responder, f"nobody.{ZONE}")
    await ask(dns_responder, f"web.{ZONE}")
    assert outside.asked == ["example.com", "unknown.example"]


@contextlib.asynccontextmanager
async def served(known: Known, **options):
    loop = asyncio.get_running_loop()
    async with dns_server.serve(known.responder(**options), socket.create_server(("127.0.0.1", 0))) as port:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            line.setblocking(False)
            line.connect(("127.0.0.1", port))

            async def datagram(message: bytes) -> bytes:
                await loop.sock_sendall(line, message)
                return await loop.sock_recv(line, 4096)

            yield datagram, port


async def test_a_datagram_gets_its_answer_also_after_nonsense():
    async with served(Known()) as (datagram, _):
        failure = await datagram(query("web", questions=2))
        assert failure[:4] == b"\0\7\x80\1"
        assert decode(await datagram(query(f"web.{ZONE}"))).records == [(f"web.{ZONE}", A, "10.96.0.7")]


async def test_one_held_question_does_not_hold_up_another():
    known = Known()
    async with served(known, hold_seconds=1000) as (datagram, port):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as patient:
            patient.setblocking(False)
            patient.connect(("127.0.0.1", port))
            await asyncio.get_running_loop().sock_sendall(patient, query(f"job-1.job.{ZONE}"))
            assert decode(await datagram(query(f"web.{ZONE}"))).code == Code.OK
            known.add("job-1", "10.244.0.9")
            held = decode(await asyncio.get_running_loop().sock_recv(patient, 4096))
            assert [record[2] for record in held.records] == ["10.244.0.9"]


async def test_what_is_too_long_for_a_datagram_is_whole_over_tcp():
    known = Known()
    for last in range(10, 110):
        known.add(f"job-{last}", f"10.244.0.{last}")
    async with served(known) as (datagram, port):
        assert decode(await datagram(query(f"job.{ZONE}"))).is_truncated
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):  # more than one question on a connection
            message = query(f"job.{ZONE}")
            writer.write(len(message).to_bytes(2) + message)
            answer = decode(await reader.readexactly(int.from_bytes(await reader.readexactly(2))))
            assert {record[2] for record in answer.records} == {pod.address for pod in known.pods}
        bad = query("web", questions=0)
        writer.write(len(bad).to_bytes(2) + bad)
        assert (await reader.readexactly(14))[2:] == dns_wire.failure(bad, Code.MALFORMED)
        writer.write(b"\0\1x")  # no question at all: the server has had enough
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_the_end_of_the_server_ends_what_is_held():
    async with served(Known(), hold_seconds=1000) as (_, port):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as patient:
            patient.setblocking(False)
            await asyncio.get_running_loop().sock_sendto(patient, query(f"job-1.job.{ZONE}"), ("127.0.0.1", port))
