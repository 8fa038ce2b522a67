"""OCI registries: artifacts, images made for their model, tokens, digests."""

from __future__ import annotations

import json
import random
import tarfile
from base64 import b64encode
from pathlib import Path

import pytest

from skysail.runtimes.fetch.errors import AccessDenied, InvalidArgument, InvalidContent, TransientError
from tests.support.model_sources import Files, Registry, serving, tar_of
from tests.unit.runtimes.fetch.harness import content, fetch

_BODY = random.Random(11).randbytes(400_000)
_TITLE = "org.opencontainers.image.title"
_TAR = "application/vnd.oci.image.layer.v1.tar"
_PLAIN = {"OCI_PLAIN_HTTP": "true"}


def _oci(url: str, rest: str) -> str:
    return f"oci://{url.removeprefix('http://')}/{rest}"


async def test_files_of_an_artifact_have_their_titles(tmp_path: Path):
    registry = Registry()
    layers = [(_BODY, _TAR, {_TITLE: "iris.onnx"}), (b"notes", "text/plain", {_TITLE: "docs/notes.txt"})]
    digest = registry.push("org/iris", "v1", layers)
    async with serving(registry) as url:
        for number, reference in enumerate((":v1", f"@{digest}", f":v1@{digest}")):
            await fetch(_oci(url, f"org/iris{reference}"), tmp_path / str(number), secrets=_PLAIN)

    for number in range(3):
        assert content(tmp_path / str(number)) == {"iris.onnx": _BODY, "docs/notes.txt": b"notes"}


async def test_folders_of_an_artifact_are_unpacked(tmp_path: Path):
    registry = Registry()
    packed = tar_of({"iris/model.onnx": _BODY})
    notes = {_TITLE: "iris", "io.deis.oras.content.unpack": "true"}
    registry.push("org/iris", "latest", [(packed, f"{_TAR}+gzip", notes), (b"x", "text/plain", {_TITLE: "x.txt"})])
    async with serving(registry) as url:
        await fetch(_oci(url, "org/iris"), tmp_path / "m", secrets=_PLAIN)

    assert content(tmp_path / "m") == {"iris/model.onnx": _BODY, "x.txt": b"x"}


async def test_of_an_image_the_folder_models_is_taken_and_later_layers_win(tmp_path: Path):
    registry = Registry()
    link = tarfile.TarInfo("bin")
    link.type, link.linkname = tarfile.SYMTYPE, "usr/bin"
    first = tar_of({"etc/passwd": b"root", "models/old.onnx": b"old", "models/iris.onnx": b"first"}, members=[link])
    second = tar_of({"models/.wh.old.onnx": b"", "models/iris.onnx": _BODY})
    registry.push("org/iris", "v1", [(first, f"{_TAR}+gzip", {}), (second, f"{_TAR}+gzip", {})])
    async with serving(registry) as url:
        await fetch(_oci(url, "org/iris:v1"), tmp_path / "m", secrets=_PLAIN)

    assert content(tmp_path / "m") == {"iris.onnx": _BODY}


async def test_an_image_without_that_folder_is_taken_whole(tmp_path: Path):
    registry = Registry()
    registry.push("org/iris", "v1", [(tar_of({"iris.onnx": _BODY}, packed=False), _TAR, {})])
    async with serving(registry) as url:
        await fetch(_oci(url, "org/iris:v1"), tmp_path / "m", secrets=_PLAIN)

    assert content(tmp_path / "m") == {"iris.onnx": _BODY}


async def test_of_several_platforms_the_one_of_servers_is_taken(tmp_path: Path):
    registry = Registry()
    rows = []
    for system, machine, body in (
        ("unknown", "unknown", b"a note"),
        ("linux", "arm64", b"arm"),
        ("linux", "amd64", _BODY),
    ):
        digest = registry.push("org/iris", "one", [(body, _TAR, {_TITLE: "iris.onnx"})])
        rows.append({"digest": digest, "size": 1, "platform": {"os": system, "architecture": machine}})
    registry.manifest("org/iris", "v1", {"manifests": rows})
    async with serving(registry) as url:
        await fetch(_oci(url, "org/iris:v1"), tmp_path / "m", secrets=_PLAIN)

    assert content(tmp_path / "m") == {"iris.onnx": _BODY}


@pytest.mark.parametrize("form", ["keys", "dockerconfig", "encoded"])
async def test_a_token_is_had_by_user_and_password(tmp_path: Path, form):
    registry = Registry(login="me:hunter2")
    registry.push("org/iris", "v1", [(_BODY, _TAR, {_TITLE: "iris.onnx"})])
    async with serving(registry) as url:
        host = url.removeprefix("http://")
        encoded = b64encode(b"me:hunter2").decode()
        secrets = {
            "keys": {"OCI_USERNAME": "me", "OCI_PASSWORD": "hunter2"},
            "dockerconfig": {
                ".dockerconfigjson": json.dumps({"auths": {host: {"username": "me", "password": "hunter2"}}})
            },
            "encoded": {".dockerconfigjson": json.dumps({"auths": {f"https://{host}": {"auth": encoded}}})},
        }[form]
        await fetch(_oci(url, "org/iris:v1"), tmp_path / "m", secrets={**_PLAIN, **secrets})

    assert content(tmp_path / "m") == {"iris.onnx": _BODY}


async def test_a_wrong_password_is_told(tmp_path: Path):
    registry = Registry(login="me:hunter2")
    async with serving(registry) as url:
        secrets = {**_PLAIN, "OCI_USERNAME": "me", "OCI_PASSWORD": "wrong"}
        with pytest.raises(AccessDenied) as raised:
            await fetch(_oci(url, "org/iris:v1"), tmp_path / "m", secrets=secrets)

    assert raised.value.reason == "AccessDenied"


async def test_the_password_is_not_told_to_another_host_in_the_clear(tmp_path: Path):
    registry, thief = Registry(login="me:hunter2"), Files()
    thief.files["/token"] = b'{"token": "stolen"}'
    async with serving(thief, "127.0.0.2") as far, serving(registry) as url:
        registry.realm = f"{far}/token"
        secrets = {**_PLAIN, "OCI_USERNAME": "me", "OCI_PASSWORD": "hunter2"}
        with pytest.raises(AccessDenied):
            await fetch(_oci(url, "org/iris:v1"), tmp_path / "m", secrets=secrets)

    assert len(thief.requests) == 1
    assert "Authorization" not in thief.requests[0][1]


async def test_a_login_is_asked_for_by_the_registry_and_by_nobody_that_it_leads_to(tmp_path: Path):
    registry, thief = Registry(), Registry(login="me:hunter2")
    registry.push("org/iris", "v1", [(_BODY, _TAR, {_TITLE: "iris.onnx"})])
    blob = next(path for path in registry.files if "/blobs/" in path)
    async with serving(thief, "127.0.0.2") as far, serving(registry) as url:
        registry.redirects[blob] = f"{far}{blob}"
        secrets = {**_PLAIN, "OCI_USERNAME": "me", "OCI_PASSWORD": "hunter2"}
        with pytest.raises(AccessDenied, match="requires its own login") as raised:
            await fetch(_oci(url, "org/iris:v1"), tmp_path / "m", secrets=secrets)

    assert raised.value.reason == "AccessDenied"
    assert [path for path, _ in thief.requests] == [blob], "it is asked for no token"
    assert all("Authorization" not in headers for _, headers in thief.requests)


async def test_a_place_for_tokens_inside_is_refused(tmp_path: Path):
    registry = Registry(login="me:hunter2")
    registry.realm = "http://169.254.169.254/token"
    async with serving(registry) as url:
        with pytest.raises(AccessDenied) as raised:
            await fetch(_oci(url, "org/iris:v1"), tmp_path / "m", secrets=_PLAIN)

    assert raised.value.reason == "AddressForbidden"


@pytest.mark.parametrize(
    ("answer", "error", "reason"),
    [
        (json.dumps({"token": "x" * 2**20}).encode(), InvalidContent, "TooLarge"),
        (json.dumps({"token": "x\r\nHost: inner"}).encode(), TransientError, "ServerError"),
        (b"<html>", TransientError, "ServerError"),
        (b'{"x": ' + b"[" * 5000, TransientError, "ServerError"),
        (b'{"token": "\xff"}', TransientError, "ServerError"),
    ],
    ids=["too long", "a header in it", "a page", "no bottom", "no text"],
)
async def test_what_is_no_token_is_not_taken_for_one(tmp_path: Path, answer, error, reason):
    registry, tokens = Registry(login="me:hunter2"), Files()
    tokens.files["/give"] = answer
    async with serving(tokens) as far, serving(registry) as url:
        registry.realm = f"{far}/give"
        with pytest.raises(error) as raised:
            await fetch(_oci(url, "org/iris:v1"), tmp_path / "m", secrets=_PLAIN)

    assert raised.value.reason == reason


@pytest.mark.parametrize("there", ["http://169.254.169.254/token", "http://127.0.0.2/token", "http://web.ns.svc/token"])
async def test_a_place_for_tokens_that_leads_inside_is_refused(tmp_path: Path, there):
    registry, tokens = Registry(login="me:hunter2"), Files()
    tokens.redirects["/token"] = there
    async with serving(tokens) as far, serving(registry) as url:
        registry.realm = f"{far}/token"
        with pytest.raises(AccessDenied) as raised:
            await fetch(_oci(url, "org/iris:v1"), tmp_path / "m", secrets=_PLAIN, allowed=("127.0.0.1",))

    assert raised.value.reason == "AddressForbidden"


@pytest.mark.parametrize(
    "realm", ["", "file:///etc/passwd", "s3://bucket/token", "http://[", "ftp://example.com/token"]
)
async def test_a_place_for_tokens_that_is_no_address_is_refused(tmp_path: Path, realm):
    registry = Registry(login="me:hunter2")
    async with serving(registry) as url:
        registry.realm = realm or " "
        with pytest.raises(AccessDenied) as raised:
            await fetch(_oci(url, "org/iris:v1"), tmp_path / "m", secrets=_PLAIN)

    assert raised.value.reason == "AddressForbidden"


async def test_a_place_for_tokens_may_have_a_query_of_its_own(tmp_path: Path):
    registry, tokens = Registry(login="me:hunter2"), Files()
    registry.push("org/iris", "v1", [(_BODY, _TAR, {_TITLE: "iris.onnx"})])
    tokens.files["/token"] = json.dumps({"access_token": registry.token}).encode()
    async with serving(tokens) as far, serving(registry) as url:
        registry.realm = f"{far}/token?tenant=7"
        await fetch(_oci(url, "org/iris:v1"), tmp_path / "m", secrets=_PLAIN)

    assert content(tmp_path / "m") == {"iris.onnx": _BODY}


@pytest.mark.parametrize("body", [b"<html>", b'{"x": ' + b"[" * 5000, b'{"layers": [{"digest": "\xff", "size": 1}]}'])
async def test_what_is_no_manifest_is_told(tmp_path: Path, body):
    registry = Registry()
    registry.files["/v2/org/iris/manifests/v1"] = body
    async with serving(registry) as url:
        with pytest.raises(InvalidContent, match="an invalid manifest"):
            await fetch(_oci(url, "org/iris:v1"), tmp_path / "m", secrets=_PLAIN)


@pytest.mark.parametrize("config", ["{", '{"x": ' + "[" * 5000, "\udcff"])
async def test_a_login_that_cannot_be_read_is_told(tmp_path: Path, config):
    with pytest.raises(AccessDenied, match="create the Secret again"):
        await fetch("oci://127.0.0.1/org/iris", tmp_path / "m", secrets={".dockerconfigjson": config})


async def test_a_blob_that_is_not_its_digest_is_not_taken(tmp_path: Path):
    registry = Registry()
    registry.push("org/iris", "v1", [(_BODY, _TAR, {_TITLE: "iris.onnx"})])
    blob = next(path for path in registry.files if "/blobs/" in path)
    registry.files[blob] = bytes(len(_BODY))
    async with serving(registry) as url:
        with pytest.raises(TransientError):
            await fetch(_oci(url, "org/iris:v1"), tmp_path / "m", secrets=_PLAIN)

    assert not (tmp_path / "m").exists()


async def test_a_manifest_that_is_not_its_digest_is_not_taken(tmp_path: Path):
    registry = Registry()
    digest = registry.push("org/iris", "v1", [(_BODY, _TAR, {_TITLE: "iris.onnx"})])
    registry.files[f"/v2/org/iris/manifests/{digest}"] = b'{"layers": []}'
    async with serving(registry) as url:
        with pytest.raises(TransientError):
            await fetch(_oci(url, f"org/iris@{digest}"), tmp_path / "m", secrets=_PLAIN)


async def test_cuts_are_resumed(tmp_path: Path):
    registry = Registry()
    registry.has_marks = False
    registry.push("org/iris", "v1", [(_BODY, _TAR, {_TITLE: "iris.onnx"})])
    blob = next(path for path in registry.files if "/blobs/" in path)
    registry.cuts[blob] = [200_000]
    async with serving(registry) as url:
        await fetch(_oci(url, "org/iris:v1"), tmp_path / "m", secrets=_PLAIN)

    assert content(tmp_path / "m") == {"iris.onnx": _BODY}
    assert len([asked for asked in registry.ranges_of(blob) if asked]) == 1


@pytest.mark.parametrize("rest", ["org/other:v1", "org/iris:v2", "ORG/iris", "org/iris@sha256:abc"])
async def test_what_does_not_exist_is_told(tmp_path: Path, rest):
    registry = Registry()
    registry.push("org/iris", "v1", [(_BODY, _TAR, {_TITLE: "iris.onnx"})])
    async with serving(registry) as url:
        with pytest.raises(InvalidArgument) as raised:
            await fetch(_oci(url, rest), tmp_path / "m", secrets=_PLAIN)

    assert raised.value.reason == "NotFound"


@pytest.mark.parametrize("title", ["../../etc/cron.d/x", "/etc/passwd", "a\\b", "..", ""])
async def test_titles_that_lead_out_of_the_folder_are_refused(tmp_path: Path, title):
    registry = Registry()
    registry.push("org/iris", "v1", [(b"x", "text/plain", {_TITLE: title}), (b"y", "text/plain", {_TITLE: "y"})])
    async with serving(registry) as url:
        if title:
            with pytest.raises(InvalidContent):
                await fetch(_oci(url, "org/iris:v1"), tmp_path / "m", secrets=_PLAIN)
        else:
            await fetch(_oci(url, "org/iris:v1"), tmp_path / "m", secrets=_PLAIN)
            assert content(tmp_path / "m") == {"layer-0000.tar": b"x", "y": b"y"}
