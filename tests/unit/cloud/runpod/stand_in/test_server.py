"""The stand-in is as strict as the documented API, whatever the client of Skysail would send."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from skysail.cloud.runpod import api
from tests.support import virtual_time
from tests.support.runpod_scene import KEY, scene

if TYPE_CHECKING:
    from collections.abc import Mapping

GPU = {"id": "NVIDIA A40", "count": 1}
POD = {"name": "p", "image": "busybox", "gpu": GPU}
PROBLEM = "application/problem+json"
MAX_BODY = 102_400
# Fields of the documented bodies, written down from the documentation and not from the client.
CREATE_POD = {
    "name", "image", "cloud", "gpu", "cpu", "entrypoint", "cmd", "args", "env", "ports", "disk", "mounts",
    "dataCenterIds", "registry", "templateId", "globalNetworking", "startSsh", "startJupyter",
}  # fmt: skip
GPU_ORDER = {"id", "count", "minCudaVersion", "allowedCudaVersions", "minRamPerGpu", "minVcpuCountPerGpu"}


class Answer:
    def __init__(self, raw: bytes) -> None:
        head, _, body = raw.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        self.status = int(status.split()[1])
        self.headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        self.body: Any = json.loads(body) if body else None


async def call(at, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
    """Send one request over the socket, without the client of Skysail."""
    reader, writer = await asyncio.open_unix_connection(str(at.account.client.endpoint.socket))
    sent = {"Host": "runpod", "Authorization": f"Bearer {KEY}", "Connection": "close", "User-Agent": "test/1.0"}
    sent |= {"Content-Length": str(len(body)), "Content-Type": "application/json", **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
    await writer.drain()
    raw = await reader.read()
    writer.close()
    return Answer(raw)


def answer(method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
    async def run() -> Answer:
        async with scene() as at:
            found = await call(at, method, path, body, headers)
            assert len(at.service.pods) == (found.status == 201)
            return found

    return virtual_time.run(run())


def created(**fields: object) -> Answer:
    return answer("POST", "/v2/pods", json.dumps({**POD, **fields}).encode())


def body_of(size: int) -> bytes:
    """Return a valid body of so many bytes."""
    empty = json.dumps({**POD, "args": ""}).encode()
    return json.dumps({**POD, "args": "x" * (size - len(empty))}).encode()


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({"imageName": "busybox"}, 422, "imageName"),
        ({"gpu": {**GPU, "type": "A40"}}, 422, "type"),
        ({"gpu": {"count": 1}}, 422, "id"),
        ({"mounts": {"persistent": {"size": 10, "path": "/d", "name": "n"}}}, 422, "name"),
        ({"env": {f"A{number}": "1" for number in range(51)}}, 422, "env"),
        ({"name": "n" * 192}, 422, "name"),
        ({"name": ""}, 422, "name"),
        ({"name": 1}, 422, "name"),
        ({"image": ""}, 422, "image"),
        ({"cloud": "ALL"}, 422, "cloud"),
        ({"ports": ["8080"]}, 422, "ports"),
        ({"ports": ["70000/http"]}, 422, "ports"),
        ({"ports": ["8080/udp"]}, 422, "ports"),
        ({"mounts": {"persistent": {"size": 9, "path": "/d"}}}, 422, "size"),
        ({"gpu": {**GPU, "minCudaVersion": "twelve"}}, 422, "gpu"),
        (
            {"mounts": {"persistent": {"size": 10, "path": "/d"}, "network": [{"volumeId": "v", "path": "/n"}]}},
            400,
            "mutually exclusive",
        ),
        ({"gpu": {**GPU, "minCudaVersion": "12.4", "allowedCudaVersions": ["12.4"]}}, 400, "mutually exclusive"),
        ({"gpu": None}, 400, "gpu or cpu"),
        ({"dataCenterIds": ["EU-XX-1"]}, 400, "EU-XX-1"),
    ],
)
def test_create_with_a_body_against_the_rules_is_a_problem(fields, status, text):
    found = created(**fields)
    assert (found.status, found.body["status"], found.headers["content-type"]) == (status, status, PROBLEM)
    assert found.body["title"]
    assert text in " ".join([found.body["detail"], *found.body.get("errors", [])])


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "n" * 191},
        {"env": {f"A{number}": "1" for number in range(50)}},
        {"ports": ["8080/http", "65535/tcp"]},
        {"mounts": {"persistent": {"size": 10, "path": "/d"}}},
    ],
)
def test_create_with_a_body_at_the_limits_is_created(fields):
    assert created(**fields).status == 201


@pytest.mark.parametrize(("size", "status"), [(MAX_BODY, 201), (MAX_BODY + 1, 413)])
def test_create_with_a_body_beyond_the_limit_is_too_large(size, status):
    assert answer("POST", "/v2/pods", body_of(size)).status == status


def test_create_with_a_body_that_is_no_json_is_a_problem():
    found = answer("POST", "/v2/pods", b"{")
    assert (found.status, found.headers["content-type"]) == (400, PROBLEM)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/catalog/gpus?include=AVAILABILITY", 400),
        ("/v2/catalog/cpus?include=AVAILABILITY", 400),
        ("/v2/catalog/gpus?include=AVAILABILITY&product=POD", 200),
        ("/v2/catalog/gpus", 200),
        ("/v2/pods/none", 404),
        ("/v2/pods/none/logs", 404),
        ("/v1/pods", 404),
    ],
)
def test_read_that_lacks_its_product_or_object_is_a_problem(path, status):
    found = answer("GET", path)
    assert found.status == status
    assert (found.headers["content-type"] == PROBLEM) is (status != 200)


def test_call_with_another_key_is_unauthorized():
    found = answer("GET", "/v2/pods", headers={"Authorization": "Bearer other"})
    assert (found.status, found.headers["content-type"]) == (401, PROBLEM)


@pytest.mark.parametrize("request_line", [("GET", "/v2/pods"), ("GET", "/v2/pods/none"), ("POST", "/v2/pods")])
def test_answer_of_any_status_names_the_quota_and_the_request(request_line):
    headers = answer(*request_line).headers
    assert headers["ratelimit"].startswith('"minute";r=')
    assert headers["ratelimit-policy"].startswith('"minute";q=')
    assert headers["x-request-id"]


@pytest.mark.parametrize(("kind", "documented"), [(api.CreatePod, CREATE_POD), (api.GpuOrder, GPU_ORDER)])
def test_bodies_of_the_client_have_the_documented_fields_only(kind, documented):
    assert {field.encode_name for field in msgspec.structs.fields(kind)} == documented
