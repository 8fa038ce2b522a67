"""Configs of images, read from a real registry."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from skysail.cloud.account import RegistryCredentials
from skysail.cloud.errors import OutcomeUnknown, Rejected, Throttled
from skysail.cloud.image_names import parse
from skysail.cloud.images import _MAX_SEARCHES, ImageConfig, ImageReader, with_command
from skysail.cloud.provider import Container
from skysail.cloud.registry_addresses import AddressDenied, RegistryAddresses
from skysail.cloud.registry_client import RegistryClient
from skysail.cloud.registry_mirrors import RegistryMirrors
from tests.support import registry
from tests.support.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PASSWORD = secrets.token_hex(8)


@pytest.fixture(scope="module")
def open_registry() -> Iterator[Registry]:
    with registry.running() as running:
        yield running


@pytest.fixture(scope="module")
def private_registry() -> Iterator[Registry]:
    with registry.running("reader", PASSWORD) as running:
        yield running


def read(image: str, allowed: tuple[str, ...], credentials: RegistryCredentials | None = None) -> ImageConfig:
    async def run() -> ImageConfig:
        reader = ImageReader(allowed)
        try:
            return await reader.read(image, credentials)
        finally:
            await reader.close()

    return asyncio.run(run())


def test_read_image_returns_its_config(open_registry):
    nonce = secrets.token_hex(8)
    pushed = registry.image(
        {"Entrypoint": ["/bin/echo"], "Cmd": [nonce], "Env": ["A=b=c", "D="], "User": "7:8", "WorkingDir": "/w"},
        registry.layer({"bin/echo": b"x"}),
        history=[{"created_by": "RUN /bin/sh -c make"}],
    )
    found = read(open_registry.push("team/app", "v1", pushed), open_registry.allowed)
    assert found == ImageConfig(
        digest=pushed.digest,
        entrypoint=("/bin/echo",),
        cmd=(nonce,),
        env=(("A", "b=c"), ("D", "")),
        user="7:8",
        working_dir="/w",
        has_shell=True,
        layers=found.layers,
    )
    assert len(found.layers) == 1


def test_read_by_digest_returns_its_config(open_registry):
    pushed = registry.image({"Cmd": ["/run"]})
    open_registry.push("team/digest", "v1", pushed)
    found = read(f"{open_registry.host}/team/digest@{pushed.digest}", open_registry.allowed)
    assert (found.cmd, found.entrypoint, found.has_shell) == (("/run",), (), None)


def test_read_index_takes_the_variant_for_linux_amd64(open_registry):
    variants = (
        ("linux/arm64", registry.image({"Cmd": ["arm"]}, architecture="arm64")),
        ("unknown/unknown", registry.image({"Cmd": ["attestation"]})),
        ("linux/amd64", registry.image({"Cmd": ["amd"]})),
    )
    image = open_registry.push("team/index", "v1", registry.index(*variants))
    assert read(image, open_registry.allowed).cmd == ("amd",)


@pytest.mark.parametrize(
    ("pushed", "message"),
    [
        (registry.index(("linux/arm64", registry.image({}))), "no variant for linux/amd64"),
        (registry.image({}, architecture="arm64"), "it is for linux/arm64"),
        (registry.image({}, os="windows"), "it is for windows/amd64"),
        (registry.image({"Cmd": "sh"}), "manifest or config is invalid"),
        (registry.image({"Cmd": ["a\0b"]}), "ENTRYPOINT or CMD is invalid"),
    ],
)
def test_read_unusable_image_is_rejected_with_the_fix(open_registry, pushed, message):
    image = open_registry.push("team/unusable", secrets.token_hex(4), pushed)
    with pytest.raises(Rejected, match=message) as caught:
        read(image, open_registry.allowed)
    assert caught.value.reason == "EntrypointUnknown"


@pytest.mark.parametrize("name", ["team/absent:v1", "team/app@sha256:" + "0" * 64])
def test_read_unknown_image_is_rejected(open_registry, name):
    with pytest.raises(Rejected, match=r"does not have it\. Check the name"):
        read(f"{open_registry.host}/{name}", open_registry.allowed)


def test_read_invalid_name_is_rejected():
    with pytest.raises(Rejected, match="its name is invalid"):
        read("Not A Name", ())


def test_read_private_image_uses_the_pull_credentials(private_registry):
    image = private_registry.push("team/private", "v1", registry.image({"Cmd": ["secret"]}))
    credentials = RegistryCredentials(private_registry.host, "reader", PASSWORD)
    assert read(image, private_registry.allowed, credentials).cmd == ("secret",)


@pytest.mark.parametrize(
    ("username", "password", "fix"),
    [("", "", "name it in `imagePullSecrets`"), ("reader", "wrong", "Check the user and the password of the pull")],
)
def test_read_private_image_without_permission_is_rejected(private_registry, username, password, fix):
    image = private_registry.push("team/private", "v2", registry.image({"Cmd": ["secret"]}))
    credentials = RegistryCredentials(private_registry.host, username, password) if username else None
    with pytest.raises(Rejected, match=fix) as caught:
        read(image, private_registry.allowed, credentials)
    assert "reader" not in str(caught.value)


def test_read_cached_image_of_others_still_needs_credentials(private_registry):
    image = private_registry.push("team/private", "v3", registry.image({"Cmd": ["secret"]}))
    credentials = RegistryCredentials(private_registry.host, "reader", PASSWORD)

    async def run() -> None:
        reader = ImageReader(private_registry.allowed)
        assert (await reader.read(image, credentials)).cmd == ("secret",)
        with pytest.raises(Rejected):
            await reader.read(image, None)
        await reader.close()

    asyncio.run(run())


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost:1", "10.0.0.1", "[::ffff:10.0.0.1]:5000"])
def test_read_private_address_is_not_connected_to(host):
    with pytest.raises(Rejected, match=r"is a private address.*allowed_registries"):
        read(f"{host}/team/app:v1", ())


@pytest.mark.parametrize("host", ["127.1", "1.2.3.4.5"])
def test_read_invalid_address_is_not_connected_to(host):
    with pytest.raises(Rejected, match=rf"{host} is an invalid address"):
        read(f"{host}/team/app:v1", ())


def test_read_metadata_address_is_denied_even_if_its_network_is_allowed():
    with pytest.raises(Rejected, match="cloud metadata address"):
        read("169.254.169.254:80/a:b", ("169.254.0.0/16",))


def test_read_registry_that_is_down_is_unknown():
    with pytest.raises(OutcomeUnknown, match=r"cannot be reached.*Retried"):
        read("127.0.0.1:1/team/app:v1", ("http://127.0.0.1:1",))


async def read_from(handler: Callable[[web.Request], web.StreamResponse], image: str = "a:b") -> ImageConfig:
    """Read from a server that misbehaves."""
    seen: list[web.Request] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.append(request)
        return handler(request)

    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    async with TestServer(app) as server:
        host = f"127.0.0.1:{server.port}"
        reader = ImageReader((f"http://{host}",))
        try:
            return await reader.read(f"{host}/{image}", RegistryCredentials(host, "user", "canary-password"))
        finally:
            await reader.close()


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (lambda: web.Response(status=500), OutcomeUnknown, "answered 500"),
        (lambda: web.Response(status=429, headers={"Retry-After": "7"}), Throttled, "limits requests"),
        (lambda: web.Response(body=b"x" * (4 * 2**20 + 1)), Rejected, "more than"),
        (lambda: web.Response(body=b"<html>"), Rejected, "is invalid"),
        (lambda: web.Response(status=302, headers={"Location": "http://10.0.0.1/x"}), Rejected, "a private address"),
        (lambda: web.Response(status=302, headers={"Location": "http://127.1/x"}), Rejected, "an invalid address"),
        (lambda: web.Response(status=302, headers={"Location": "/again"}), OutcomeUnknown, "redirects more than"),
        (
            lambda: web.Response(status=401, headers={"WWW-Authenticate": 'Bearer realm="http://evil.example/t"'}),
            OutcomeUnknown,
            "token server without TLS",
        ),
        (
            lambda: web.Response(status=401, headers={"WWW-Authenticate": 'Bearer realm="https://10.0.0.1/t"'}),
            Rejected,
            "a private address",
        ),
    ],
)
def test_read_misbehaving_registry_is_an_error_of_the_provider(answer, error, message):
    with pytest.raises(error, match=message) as caught:
        asyncio.run(read_from(lambda _: answer()))
    assert "canary" not in str(caught.value)
    if isinstance(caught.value, Throttled):
        assert caught.value.retry_after == 7.0


def test_read_wrong_content_for_a_digest_is_unknown():
    with pytest.raises(OutcomeUnknown, match="does not match sha256"):
        asyncio.run(read_from(lambda _: web.Response(body=b"{}"), f"a@sha256:{'1' * 64}"))


def test_read_redirect_to_another_host_drops_the_credentials():
    seen: list[str] = []

    async def run() -> None:
        other = web.Application()

        async def take(request: web.Request) -> web.Response:
            seen.append(request.headers.get("Authorization", ""))
            return web.Response(body=b"{}")

        other.router.add_get("/{path:.*}", take)
        async with TestServer(other) as elsewhere:
            app = web.Application()

            async def redirect(request: web.Request) -> web.Response:
                if "Authorization" not in request.headers:
                    return web.Response(status=401, headers={"WWW-Authenticate": "Basic"})
                return web.Response(status=307, headers={"Location": f"http://127.0.0.1:{elsewhere.port}/x"})

            app.router.add_get("/{path:.*}", redirect)
            async with TestServer(app) as server:
                host = f"127.0.0.1:{server.port}"
                reader = ImageReader((f"http://{host}", f"http://127.0.0.1:{elsewhere.port}"))
                with pytest.raises(Rejected):
                    await reader.read(f"{host}/a:b", RegistryCredentials(host, "user", "canary-password"))
                await reader.close()

    asyncio.run(run())
    assert seen == [""]


def test_read_same_image_at_once_and_again_asks_once():
    requests: list[str] = []
    config = registry.image({"Cmd": ["x"]})

    def serve(request: web.Request) -> web.Response:
        requests.append(request.path)
        return web.Response(body=config.manifest if "manifests" in request.path else config.blobs[0])

    async def run() -> None:
        app = web.Application()

        async def handle(request: web.Request) -> web.Response:
            return serve(request)

        app.router.add_get("/{path:.*}", handle)
        now = 0.0
        async with TestServer(app) as server:
            host = f"127.0.0.1:{server.port}"
            reader = ImageReader((f"http://{host}",), clock=lambda: now)
            await asyncio.gather(*(reader.read(f"{host}/a:b") for _ in range(20)))
            assert len(requests) == 2
            now = 61.0
            await reader.read(f"{host}/a:b")
            assert [path.split("/")[-2] for path in requests] == ["manifests", "blobs", "manifests"]
            await reader.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("command", "args", "entrypoint", "cmd", "expected"),
    [
        ((), (), ("e",), ("c",), ("e", "c")),
        ((), ("a",), ("e",), ("c",), ("e", "a")),
        (("x",), (), ("e",), ("c",), ("x",)),
        (("x",), ("a",), ("e",), ("c",), ("x", "a")),
        ((), (), (), ("c", "d"), ("c", "d")),
        ((), ("a",), (), ("c",), ("a",)),
    ],
)
def test_with_command_combines_as_kubernetes_does(command, args, entrypoint, cmd, expected):
    container = Container(name="main", image="i", command=command, args=args)
    found = with_command(container, ImageConfig(digest="d", entrypoint=entrypoint, cmd=cmd))
    assert found.command + found.args == expected
    assert found.command


def test_with_command_image_without_program_is_rejected():
    with pytest.raises(Rejected, match="neither ENTRYPOINT nor CMD"):
        with_command(Container(name="main", image="i"), ImageConfig(digest="d"))


def finds_shell(image: str, allowed: tuple[str, ...], credentials: RegistryCredentials | None = None) -> bool | None:
    async def run() -> bool | None:
        reader = ImageReader(allowed)
        try:
            return await reader.has_shell(image, credentials)
        finally:
            await reader.close()

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("layers", "found"),
    [
        ([{"app": b"x"}, {"bin/sh": b"x"}], True),
        ([{"app": b"x"}, {"usr/bin/python3": b"x"}], False),
        ([], False),
    ],
)
def test_has_shell_reads_the_files_of_the_layers(open_registry, layers, found):
    pushed = registry.image({"Cmd": ["/app"]}, *map(registry.layer, layers))
    name = open_registry.push(f"team/shell-{secrets.token_hex(4)}", "v1", pushed)
    assert finds_shell(name, open_registry.allowed) is found


def test_has_shell_of_an_image_that_ran_one_reads_no_layer(open_registry):
    pushed = registry.image({"Cmd": ["sh", "-c", "true"]}, registry.layer({"app": b"x"}))
    assert finds_shell(open_registry.push("team/built", "v1", pushed), open_registry.allowed) is True


def test_has_shell_of_an_image_that_cannot_be_read_is_unknown(open_registry, private_registry):
    assert finds_shell(f"{open_registry.host}/team/none:v1", open_registry.allowed) is None
    pushed = registry.image({"Cmd": ["/app"]}, registry.layer({"app": b"x"}))
    private = private_registry.push("team/secret", "v1", pushed)
    assert finds_shell(private, private_registry.allowed) is None
    login = RegistryCredentials(private_registry.host, "reader", PASSWORD)
    assert finds_shell(private, private_registry.allowed, login) is False


def test_has_shell_of_a_layer_that_is_damaged_or_too_large_is_unknown(open_registry, monkeypatch):
    pushed = registry.image({"Cmd": ["/app"]}, registry.layer({"app": secrets.token_bytes(300_000)}))
    name = open_registry.push("team/large", "v1", pushed)
    monkeypatch.setattr("skysail.cloud.images._MAX_LAYERS_BYTES", 100_000)
    assert finds_shell(name, open_registry.allowed) is None
    monkeypatch.undo()
    assert finds_shell(name, open_registry.allowed) is False
    zstd = registry.image({"Cmd": ["/app"]}, registry.layer({"app": b"x"}))
    manifest = zstd.manifest.replace(registry.LAYER.encode(), b"application/vnd.oci.image.layer.v1.tar+zstd")
    name = open_registry.push("team/zstd", "v1", registry.Image(manifest=manifest, blobs=zstd.blobs))
    assert finds_shell(name, open_registry.allowed) is None


def read_mirrored(image: str, mirrors: dict[str, str], credentials: RegistryCredentials | None = None) -> ImageConfig:
    async def run() -> ImageConfig:
        reader = ImageReader(registry_mirrors=mirrors)
        try:
            return await reader.read(image, credentials)
        finally:
            await reader.close()

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("named", "registry_name", "repository", "prefix"),
    [
        ("python:3.11-slim", "docker.io", "library/python", ""),
        ("docker.io/team/tool:3.11-slim", "docker.io", "team/tool", ""),
        ("team/tool:3.11-slim", "registry-1.docker.io", "hub/team/tool", "/hub"),
        ("quay.example/a/b:3.11-slim", "quay.example", "proxies/quay/a/b", "/proxies/quay/"),
        ("quay.example:444/a:3.11-slim", "quay.example:444", "a", "/"),
    ],
)
def test_image_of_a_registry_with_a_mirror_is_read_from_the_mirror(
    open_registry, named, registry_name, repository, prefix
):
    nonce = secrets.token_hex(8)
    open_registry.push(repository, "3.11-slim", registry.image({"Entrypoint": [nonce]}))
    found = read_mirrored(named, {registry_name: f"http://{open_registry.host}{prefix}"})
    assert found.entrypoint == (nonce,)


def test_mirror_without_the_image_is_named(open_registry):
    url = f"http://{open_registry.host}"
    with pytest.raises(Rejected, match=rf"mirror {url}/ of registry docker\.io does not have it"):
        read_mirrored("absent:1", {"docker.io": url})


def test_mirror_that_is_down_is_named():
    with pytest.raises(OutcomeUnknown, match=r"mirror http://127\.0\.0\.1:1/ of registry docker\.io cannot be reached"):
        read_mirrored("python:3", {"docker.io": "http://127.0.0.1:1"})


def test_mirror_of_another_registry_is_not_used(open_registry):
    open_registry.push("a", "1", registry.image({"Entrypoint": ["x"]}))
    with pytest.raises(OutcomeUnknown, match=r"registry nowhere\.invalid cannot be reached"):
        read_mirrored("nowhere.invalid/a:1", {"docker.io": f"http://{open_registry.host}"})


def test_credentials_of_the_registry_never_reach_its_mirror(open_registry):
    """A private image is read from its registry, although the mirror has an image of this name."""
    open_registry.push("a", "1", registry.image({"Entrypoint": ["x"]}))
    credentials = RegistryCredentials(registry="nowhere.invalid", username="reader", password=PASSWORD)
    with pytest.raises(OutcomeUnknown, match=r"registry nowhere\.invalid cannot be reached"):
        read_mirrored("nowhere.invalid/a:1", {"nowhere.invalid": f"http://{open_registry.host}"}, credentials)


def test_reader_says_which_images_have_a_mirror():
    reader = ImageReader(registry_mirrors={"index.docker.io": "https://mirror.example"})
    assert [reader.has_mirror(image) for image in ("python", "docker.io/a/b:1", "quay.io/a")] == [True, True, False]


@pytest.mark.parametrize(
    ("mirror", "host", "opened", "closed"),
    [
        ("https://mirror.internal/p", "mirror.internal", 443, 8443),
        ("http://mirror.internal", "mirror.internal", 80, 443),
        ("http://[fd00::1]:5000", "fd00::1", 5000, 22),
        ("https://10.0.0.7/p", "10.0.0.7", 443, 22),
    ],
)
def test_mirror_opens_its_own_port_only(mirror, host, opened, closed):
    addresses = RegistryAddresses((), RegistryMirrors({"docker.io": mirror}).endpoints)
    spelling = host if ":" in host else "10.0.0.7"
    addresses.check(host, opened, [spelling])
    with pytest.raises(AddressDenied, match="private address"):
        addresses.check(host, closed, [spelling])


def test_has_shell_searches_few_images_at_once():
    images = [registry.image({"Cmd": [f"/app{number}"]}, registry.layer({"app": b"x"})) for number in range(12)]
    blobs = {registry.digest(blob): blob for image in images for blob in image.blobs}
    layer = images[0].blobs[1]
    at_once = most = 0

    async def run() -> None:
        too_many = asyncio.Event()

        async def handle(request: web.Request) -> web.Response:
            nonlocal at_once, most
            _, _, number, kind, reference = request.path.split("/")
            if kind == "manifests":
                return web.Response(body=images[int(number)].manifest)
            if blobs[reference] != layer:
                return web.Response(body=blobs[reference])
            at_once += 1
            most = max(most, at_once)
            if at_once > _MAX_SEARCHES:
                too_many.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(too_many.wait(), 0.1)
            at_once -= 1
            return web.Response(body=layer)

        app = web.Application()
        app.router.add_get("/{path:.*}", handle)
        async with TestServer(app) as server:
            host = f"127.0.0.1:{server.port}"
            reader = ImageReader((f"http://{host}",))
            found = await asyncio.gather(*(reader.has_shell(f"{host}/{number}:b") for number in range(12)))
            assert found == [False] * 12
            await reader.close()

    asyncio.run(run())
    assert most == _MAX_SEARCHES


def test_blob_comes_in_small_pieces_between_which_other_tasks_run(open_registry):
    content = secrets.token_bytes(100_000)
    pushed = registry.image({"Cmd": ["/app"]}, registry.layer({"app": content}))
    name = parse(open_registry.push("team/pieces", "v1", pushed))
    pieces, turns = [], []

    async def run() -> None:
        client = RegistryClient(RegistryAddresses(open_registry.allowed), RegistryMirrors({}))
        turn = itertools.count()

        async def other() -> None:
            while True:
                next(turn)
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        async for piece in client.repository(name, None).stream(registry.digest(pushed.blobs[1])):
            pieces.append(piece)
            turns.append(next(turn))
        task.cancel()
        await client.close()

    asyncio.run(run())
    assert b"".join(pieces) == pushed.blobs[1]
    assert max(map(len, pieces)) <= 4096
    assert all(later - earlier > 1 for earlier, later in itertools.pairwise(turns))
