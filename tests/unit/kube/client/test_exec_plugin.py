"""Credentials from programs that a kubeconfig names. The programs are real ones, written by the tests."""

import asyncio
import json
import ssl
import stat
import sys
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from skysail.kube import certificates
from skysail.kube.client import kubeconfig
from skysail.kube.client.errors import Unreachable
from skysail.kube.client.exec_plugin import ExecPlugin, PluginConfig, PluginError
from skysail.kube.client.http_transport import HttpTransport
from skysail.kube.client.kubeconfig import Access, load_certificate
from skysail.kube.client.transport import Request

V1 = "client.authentication.k8s.io/v1"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
AUTHORITY = certificates.certificate_authority("test", now=datetime.now(UTC), valid=timedelta(days=1))
USER = certificates.client(AUTHORITY, "me", [], now=datetime.now(UTC), valid=timedelta(days=1))
# Counts its runs in a file, records what it was given, and prints a token with the number of the run.
PROGRAM = """#!{python}
import json, os, sys
from pathlib import Path
folder = Path({folder!r})
number = len(list(folder.glob("run-*"))) + 1
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
record = {{"args": sys.argv[1:], "info": info, "profile": os.environ.get("PROFILE"), "stdin": sys.stdin.read()}}
(folder / f"run-{{number}}").write_text(json.dumps(record))
status = {{"token": f"token-{{number}}"}}
status.update(json.loads({status!r}))
print(json.dumps({{"apiVersion": {version!r}, "kind": "ExecCredential", "status": status}}))
"""


@pytest.fixture
def install(tmp_path: Path):
    """Write the program `login`, or another text, and return its runs."""

    def install(text: str = "", *, status: dict | None = None, version: str = V1) -> Path:
        program = tmp_path / "login"
        program.write_text(
            text
            or PROGRAM.format(
                python=sys.executable, folder=str(tmp_path), status=json.dumps(status or {}), version=version
            )
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return tmp_path

    return install


def answer(status: dict | None, version: str = V1) -> str:
    """Return a program that prints this credential."""
    credential = {"apiVersion": version, "kind": "ExecCredential", **({} if status is None else {"status": status})}
    return f"#!/bin/sh\necho '{json.dumps(credential)}'\n"


def plugin(folder: Path, now=lambda: NOW, **config) -> ExecPlugin:
    settings = {"command": "./login", "apiVersion": V1, "interactiveMode": "Never", **config}
    return ExecPlugin(
        kubeconfig.msgspec.convert(settings, PluginConfig),
        folder,
        ssl.create_default_context(),
        load_certificate,
        cluster={"server": "https://cluster.example"},
        now=now,
    )


def runs(folder: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("run-*"))]


async def test_token_program_gets_arguments_variables_and_no_input(install):
    folder = install()
    found = plugin(
        folder,
        args=["get-token", "--cluster", "c"],
        env=[{"name": "PROFILE", "value": "team"}],
        provideClusterInfo=True,
    )
    assert await found.token() == "token-1"
    (run,) = runs(folder)
    assert (run["args"], run["profile"], run["stdin"]) == (["get-token", "--cluster", "c"], "team", "")
    assert run["info"] == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": "https://cluster.example"}},
    }


async def test_token_is_kept_until_it_expires(install):
    folder = install(status={"expirationTimestamp": (NOW + timedelta(minutes=15)).isoformat()})
    moment = {"now": NOW}
    found = plugin(folder, now=lambda: moment["now"])
    assert [await found.token() for _ in range(3)] == ["token-1"] * 3
    moment["now"] = NOW + timedelta(minutes=14, seconds=55)
    assert await found.token() == "token-2"


async def test_token_concurrent_requests_run_the_program_once(install):
    folder = install()
    found = plugin(folder)
    assert set(await asyncio.gather(*(found.token() for _ in range(5)))) == {"token-1"}


async def test_reject_runs_the_program_again_but_keeps_a_newer_token(install):
    folder = install()
    found = plugin(folder)
    first = await found.token()
    found.reject(first)
    assert await found.token() == "token-2"
    found.reject(first)
    assert await found.token() == "token-2"


@pytest.mark.parametrize(
    ("text", "config", "words"),
    [
        (
            "",
            {"command": "no-such-plugin", "installHint": "See https://example.com/install."},
            ["no-such-plugin", "Install it", "example.com/install"],
        ),
        ("#!/bin/sh\necho 'SSO session expired' >&2; exit 3\n", {}, ["exit code 3", "SSO session expired", "Log in"]),
        ("#!/bin/sh\necho hello\n", {}, ["not an ExecCredential"]),
        (answer({"token": "t"}, f"{V1}beta1"), {}, ["v1beta1"]),
        (answer(None), {}, ["no token"]),
        (answer({"clientCertificateData": "x"}), {}, ["without key"]),
        (answer({"clientCertificateData": "x", "clientKeyData": "y"}), {}, ["certificate cannot be read"]),
    ],
)
async def test_token_failure_says_why_and_what_to_do(install, text, config, words):
    folder = install(text)
    with pytest.raises(PluginError) as caught:
        await plugin(folder, **config).token()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1"}, "v1alpha1"),
        ({"interactiveMode": "Always"}, "terminal"),
    ],
)
def test_plugin_with_unsupported_settings_is_rejected_at_once(tmp_path, config, word):
    with pytest.raises(PluginError, match=word):
        plugin(tmp_path, **config)


class ApiServer:
    """Accepts one token, or a client certificate, and records what it saw."""

    def __init__(self) -> None:
        self.accepted = "token-1"
        self.seen: list[tuple[str, bool]] = []

    async def answer(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        has_certificate = bool(request.transport.get_extra_info("peercert"))
        token = request.headers.get("Authorization", "")
        self.seen.append((token, has_certificate))
        fits = has_certificate or token == f"Bearer {self.accepted}"
        return web.json_response({}, status=HTTPStatus.OK if fits else HTTPStatus.UNAUTHORIZED)


@pytest.fixture
async def server():
    pair = certificates.server(AUTHORITY, ["127.0.0.1"], now=datetime.now(UTC), valid=timedelta(days=1))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=AUTHORITY.certificate.decode())
    tls.verify_mode = ssl.CERT_OPTIONAL
    load_certificate(tls, pair.certificate, pair.key)
    known, app = ApiServer(), web.Application()
    app.router.add_get("/version", known.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    known.port = runner.addresses[0][1]
    yield known
    await runner.cleanup()


def access(folder: Path, port: int) -> Access:
    settings = {"apiVersion": V1, "command": "./login", "interactiveMode": "IfAvailable"}
    authority = kubeconfig.base64.b64encode(AUTHORITY.certificate).decode()
    content = {
        "clusters": [
            {"name": "c", "cluster": {"server": f"https://127.0.0.1:{port}", "certificate-authority-data": authority}}
        ],
        "users": [{"name": "u", "user": {"exec": settings}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (folder / "config").write_text(yaml.safe_dump(content))
    return kubeconfig.from_file(folder / "config")


async def test_requests_use_the_token_and_a_rejected_one_is_replaced(install, server):
    folder = install()
    transport = HttpTransport(access(folder, server.port))
    try:
        statuses = []
        for accepted in ("token-1", "token-2", "token-2"):
            server.accepted = accepted
            statuses.append((await transport.send(Request(method="GET", path="/version"))).status)
        assert statuses == [HTTPStatus.OK, HTTPStatus.UNAUTHORIZED, HTTPStatus.OK]
        assert [token for token, _ in server.seen] == ["Bearer token-1", "Bearer token-1", "Bearer token-2"]
    finally:
        await transport.close()


async def test_requests_use_the_certificate_of_a_plugin(install, server):
    pair = {"token": "", "clientCertificateData": USER.certificate.decode(), "clientKeyData": USER.key.decode()}
    transport = HttpTransport(access(install(status=pair), server.port))
    try:
        reply = await transport.send(Request(method="GET", path="/version"))
        assert (reply.status, server.seen) == (HTTPStatus.OK, [("", True)])
    finally:
        await transport.close()


async def test_requests_of_a_plugin_that_fails_later_can_be_retried(install, server):
    """The first failure is the user's to fix; a later one must not end the operator."""
    folder = install("#!/bin/sh\nexit 1\n")
    transport = HttpTransport(access(folder, server.port))
    try:
        with pytest.raises(PluginError):
            await transport.send(Request(method="GET", path="/version"))
        install()
        assert (await transport.send(Request(method="GET", path="/version"))).status == HTTPStatus.OK
        server.accepted = "another"
        assert (await transport.send(Request(method="GET", path="/version"))).status == HTTPStatus.UNAUTHORIZED
        install("#!/bin/sh\nexit 1\n")
        with pytest.raises(Unreachable, match="exit code 1"):
            await transport.send(Request(method="GET", path="/version"))
    finally:
        await transport.close()
