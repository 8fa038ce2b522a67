"""The Hugging Face hub: its library for what there is, our download for what comes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from aiohttp import web

from skysail.runtimes.fetch.errors import AccessDenied, InvalidArgument, TransientError
from tests.support.model_sources import Files, Hub, serving
from tests.unit.runtimes.fetch.harness import content, fetch

_BODY = random.Random(9).randbytes(400_000)
_FILES = {"config.json": b"{}", "onnx/model.onnx": _BODY, ".gitattributes": b"*"}


def _hub(token: str = "") -> Hub:
    hub = Hub("org/iris", token)
    hub.repository_files = dict(_FILES)
    return hub


async def test_a_repository_comes_as_a_folder(tmp_path: Path):
    hub = _hub()
    async with serving(hub) as url:
        await fetch("hf://org/iris", tmp_path / "m", secrets={"HF_ENDPOINT": url})

    assert content(tmp_path / "m") == {"config.json": b"{}", "onnx/model.onnx": _BODY}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("onnx/model.onnx", {"model.onnx": _BODY}),
        ("onnx", {"model.onnx": _BODY}),
        ("config.json", {"config.json": b"{}"}),
    ],
)
async def test_a_path_names_a_file_or_a_folder(tmp_path: Path, path, expected):
    async with serving(_hub()) as url:
        await fetch(f"hf://org/iris@main/{path}", tmp_path / "m", secrets={"HF_ENDPOINT": url})

    assert content(tmp_path / "m") == expected


async def test_the_token_is_for_the_hub_alone(tmp_path: Path):
    hub, cdn = _hub("hunter2"), Files()
    cdn.files = {"/config.json": b"{}", "/onnx/model.onnx": _BODY}
    cdn.cuts["/onnx/model.onnx"] = [100_000]
    async with serving(cdn, "127.0.0.2") as far, serving(hub) as url:
        hub.cdn = far
        await fetch("hf://org/iris", tmp_path / "m", secrets={"HF_ENDPOINT": url, "HF_TOKEN": "hunter2"})

    assert content(tmp_path / "m")["onnx/model.onnx"] == _BODY
    assert not any("Authorization" in headers for _, headers in cdn.requests)


async def test_what_is_gated_is_told(tmp_path: Path):
    async with serving(_hub("hunter2")) as url:
        with pytest.raises(AccessDenied) as raised:
            await fetch("hf://org/iris", tmp_path / "m", secrets={"HF_ENDPOINT": url, "HF_TOKEN": "wrong"})

    assert raised.value.reason == "AccessDenied"
    assert "HF_TOKEN" in str(raised.value)


@pytest.mark.parametrize("uri", ["hf://org/other", "hf://org/iris@v2", "hf://org", "hf://org/a--b"])
async def test_what_does_not_exist_is_told(tmp_path: Path, uri):
    async with serving(_hub()) as url:
        with pytest.raises(InvalidArgument) as raised:
            await fetch(uri, tmp_path / "m", secrets={"HF_ENDPOINT": url})

    assert raised.value.reason == "NotFound"


async def test_a_file_that_was_damaged_on_the_way_is_not_taken(tmp_path: Path):
    hub = _hub()
    hub.told_sha256["config.json"] = "0" * 64
    async with serving(hub) as url:
        with pytest.raises(TransientError) as raised:
            await fetch("hf://org/iris", tmp_path / "m", secrets={"HF_ENDPOINT": url})

    assert "damaged" in str(raised.value)


async def test_a_hub_inside_is_refused_at_the_gate(tmp_path: Path):
    hub = _hub()
    async with serving(hub) as url:
        with pytest.raises(AccessDenied) as raised:
            await fetch("hf://org/iris", tmp_path / "m", secrets={"HF_ENDPOINT": url}, allowed=())

    assert raised.value.reason == "AddressForbidden"
    assert hub.requests == []


async def test_a_hub_that_nobody_answers_at_is_told_by_name(tmp_path: Path):
    async with serving(Files()) as url:
        pass
    with pytest.raises(TransientError) as raised:
        await fetch("hf://org/iris", tmp_path / "m", secrets={"HF_ENDPOINT": url})

    assert raised.value.reason == "Unreachable"
    assert "127.0.0.1" in str(raised.value)


class _Odd(Hub):
    """It answers this in place of what there is."""

    def __init__(self, answer: bytes):
        super().__init__("org/iris")
        self._answer = answer

    async def handle(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=self._answer, content_type="application/json")


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>",
        b"[" * 5000,
        b'"\xff"',
        b"[]",
        b'{"id": "org/iris", "siblings": [{}]}',
        b'{"id": "org/iris", "siblings": [{"rfilename": "a", "size": "large"}]}',
        b'{"id": "org/iris", "siblings": [{"rfilename": "a", "lfs": 5}]}',
        b'{"id": "org/iris", "siblings": [], "createdAt": 5}',
    ],
)
async def test_what_no_hub_answers_is_told(tmp_path: Path, answer):
    async with serving(_Odd(answer)) as url:
        with pytest.raises(
            TransientError, match="sent an invalid answer: if that persists, check HF_ENDPOINT"
        ) as raised:
            await fetch("hf://org/iris", tmp_path / "m", secrets={"HF_ENDPOINT": url})

    assert raised.value.reason == "ServerError"
