"""Buckets, through the real library against servers that speak like S3 and like Google."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import pytest

from skysail.runtimes.fetch.errors import AccessDenied, InvalidArgument, InvalidContent, TransientError
from tests.support.model_sources import Bucket, Files, serving
from tests.unit.runtimes.fetch.harness import content, fetch, names

_BODY = random.Random(5).randbytes(3_000_000)


def _keys(url: str, key: str = "") -> dict[str, str]:
    signed = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": "hunter2"} if key else {}
    return {"AWS_ENDPOINT_URL": url, "AWS_REGION": "eu-central-1", **signed}


async def test_one_object_comes_with_its_name(tmp_path: Path):
    bucket = Bucket("models", key="AKIA1")
    bucket.files["/models/iris/v1/model.onnx"] = _BODY
    async with serving(bucket) as url:
        outcome = await fetch("s3://models/iris/v1/model.onnx", tmp_path / "m", secrets=_keys(url, "AKIA1"))

    assert content(tmp_path / "m") == {"model.onnx": _BODY}
    assert outcome.digest == f"sha256:{hashlib.sha256(_BODY).hexdigest()}"


@pytest.mark.parametrize("slash", ["", "/"])
async def test_a_prefix_is_a_folder_over_all_pages_of_the_listing(tmp_path: Path, slash):
    bucket = Bucket("models")
    wanted = {f"variables/part-{number}": f"{number}".encode() for number in range(7)}
    for name, body in wanted.items():
        bucket.files[f"/models/iris/{name}"] = body
    bucket.files["/models/iris/"] = b""
    bucket.files["/models/iris/variables/"] = b""
    bucket.files["/models/iris-two/other"] = b"other"
    async with serving(bucket) as url:
        outcome = await fetch(f"s3://models/iris{slash}", tmp_path / "m", layout="tree", secrets=_keys(url))

    lines = "".join(sorted(f"{name}\0{hashlib.sha256(body).hexdigest()}\n" for name, body in wanted.items()))
    assert content(tmp_path / "m") == wanted
    assert outcome.digest == f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"
    assert outcome.files == 7


async def test_google_speaks_alike(tmp_path: Path):
    bucket = Bucket("models")
    bucket.files["/models/iris/model.onnx"] = _BODY
    secrets = {"GOOGLE_BEARER_TOKEN": "hunter2"}
    async with serving(bucket) as url:
        await fetch("gs://models/iris", tmp_path / "m", secrets={"GOOGLE_BASE_URL": url, **secrets})

    assert content(tmp_path / "m") == {"model.onnx": _BODY}
    assert bucket.requests[-1][1]["Authorization"] == "Bearer hunter2"


@pytest.mark.parametrize("uri", ["s3://models/nothing", "s3://models/nothing/", "s3://models"])
async def test_an_empty_prefix_is_an_error(tmp_path: Path, uri):
    async with serving(Bucket("models")) as url:
        with pytest.raises(InvalidContent) as raised:
            await fetch(uri, tmp_path / "m", secrets=_keys(url))

    assert raised.value.reason == "EmptyModel"


async def test_a_bucket_that_does_not_exist_is_told(tmp_path: Path):
    async with serving(Bucket("models")) as url:
        with pytest.raises(InvalidArgument) as raised:
            await fetch("s3://other/iris/", tmp_path / "m", secrets=_keys(url))

    assert raised.value.reason == "NotFound"


@pytest.mark.parametrize("key", ["", "WRONG"])
async def test_keys_that_may_not_read_are_told(tmp_path: Path, key):
    bucket = Bucket("models", key="AKIA1")
    bucket.files["/models/iris/model.onnx"] = _BODY
    async with serving(bucket) as url:
        with pytest.raises(AccessDenied) as raised:
            await fetch("s3://models/iris/model.onnx", tmp_path / "m", secrets=_keys(url, key))

    assert raised.value.reason == "AccessDenied"
    assert "hunter2" not in str(raised.value)


async def test_cuts_are_resumed(tmp_path: Path):
    bucket = Bucket("models")
    bucket.files["/models/model.onnx"] = _BODY
    bucket.cuts["/models/model.onnx"] = [2_000_000]
    async with serving(bucket) as url:
        await fetch("s3://models/model.onnx", tmp_path / "m", secrets=_keys(url))

    assert content(tmp_path / "m") == {"model.onnx": _BODY}


async def test_an_object_that_is_replaced_meanwhile_is_not_mixed(tmp_path: Path):
    bucket = Bucket("models")
    bucket.files["/models/model.onnx"] = _BODY
    bucket.cuts["/models/model.onnx"] = [2_000_000, *[0] * 1000]
    new = random.Random(6).randbytes(2_500_000)
    async with serving(bucket) as url:
        with pytest.raises(TransientError):
            await fetch("s3://models/model.onnx", tmp_path / "m", secrets=_keys(url))
        bucket.cuts.clear()
        bucket.files["/models/model.onnx"] = new
        await fetch("s3://models/model.onnx", tmp_path / "m", secrets=_keys(url))

    assert content(tmp_path / "m") == {"model.onnx": new}


async def test_errors_that_pass_are_borne_and_others_told(tmp_path: Path):
    bucket = Bucket("models")
    bucket.files["/models/model.onnx"] = _BODY
    bucket.statuses["/models/model.onnx"] = [500, 503, 503]
    async with serving(bucket) as url:
        await fetch("s3://models/model.onnx", tmp_path / "m", secrets=_keys(url))
        bucket.statuses["/models/model.onnx"] = [503] * 1000
        with pytest.raises(TransientError) as raised:
            await fetch("s3://models/model.onnx", tmp_path / "other", secrets=_keys(url))

    assert content(tmp_path / "m") == {"model.onnx": _BODY}
    assert raised.value.reason == "ServerError"


async def test_an_endpoint_inside_is_refused_at_the_gate(tmp_path: Path):
    bucket = Bucket("models")
    async with serving(bucket) as url:
        with pytest.raises(AccessDenied) as raised:
            await fetch("s3://models/model.onnx", tmp_path / "m", secrets=_keys(url), allowed=())

    assert raised.value.reason == "AddressForbidden"
    assert bucket.requests == []


async def test_an_endpoint_that_is_bound_to_the_inside_is_refused_at_the_gate(tmp_path: Path):
    bucket = Bucket("models")

    async def lookup(_host, _port):
        return ["127.0.0.1"]

    async with serving(bucket) as url:
        far = f"http://store.example.com:{url.rpartition(':')[2]}"
        with pytest.raises(AccessDenied) as raised:
            await fetch("s3://models/model.onnx", tmp_path / "m", secrets=_keys(far), allowed=(), lookup=lookup)

    assert "store.example.com (127.0.0.1)" in str(raised.value)
    assert bucket.requests == []


async def test_a_place_for_tokens_inside_is_not_asked(tmp_path: Path, service_account: str):
    """The key of a service account names where its tokens are to be had: whoever writes the Secret chooses that."""
    inside = Files()
    async with serving(inside, "127.0.0.3") as tokens, serving(Bucket("models")) as url:
        key = json.dumps({**json.loads(service_account), "token_uri": f"{tokens}/token"})
        secrets = {"GOOGLE_BASE_URL": url, "GOOGLE_SERVICE_ACCOUNT_KEY": key}
        with pytest.raises(InvalidContent):
            await fetch("gs://models/iris", tmp_path / "m", secrets=secrets, allowed=("127.0.0.1",))

    assert inside.requests == []


async def test_an_endpoint_that_nobody_answers_at_is_told_by_name(tmp_path: Path):
    async with serving(Files()) as url:
        pass
    with pytest.raises(TransientError) as raised:
        await fetch("s3://models/model.onnx", tmp_path / "m", secrets=_keys(url))

    assert raised.value.reason == "Unreachable"
    assert str(raised.value) == "The connection to 127.0.0.1 failed: Connection refused."


async def test_names_that_exclude_each_other_are_refused(tmp_path: Path):
    bucket = Bucket("models")
    bucket.files["/models/iris/a"] = b"a"
    bucket.files["/models/iris/a/b"] = b"b"
    async with serving(bucket) as url:
        with pytest.raises(InvalidContent) as raised:
            await fetch("s3://models/iris/", tmp_path / "m", secrets=_keys(url))

    assert raised.value.reason == "UnsupportedFormat"
    assert names(tmp_path) == []


@pytest.fixture(scope="module")
def service_account() -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return json.dumps(
        {
            "type": "service_account",
            "client_email": "a@b",
            "private_key": key.decode(),
            "private_key_id": "1",
            "gcs_base_url": "https://storage.googleapis.com",
        }
    )
