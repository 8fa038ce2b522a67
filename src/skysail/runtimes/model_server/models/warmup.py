"""Test request over HTTP before the server becomes ready."""

from __future__ import annotations

import asyncio

import orjson

from skysail.runtimes.model_server.errors import InvalidModel
from skysail.runtimes.model_server.models.loader import LoadedModel
from skysail.runtimes.model_server.settings import Settings
from skysail.runtimes.model_server.tensors import NAMES

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


async def warm(address: tuple[str, int], settings: Settings, loaded_model: LoadedModel) -> None:
    """Send the test request. Raises InvalidModel if the answer is not 200. Without a known input, send a probe."""
    host, port = address
    reader, writer = await asyncio.open_connection(_EVERYWHERE.get(host, host), port)
    try:
        writer.write(_request(settings, loaded_model))
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
        await writer.wait_closed()
    if not head.startswith(b"HTTP/1.1 200 "):
        raise InvalidModel(f"The model was loaded, but the first request failed: {body.decode(errors='replace')}")


def _request(settings: Settings, loaded_model: LoadedModel) -> bytes:
    if loaded_model.example is None:
        return b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    specs = loaded_model.model.signature.inputs
    inputs = [
        {"name": spec.name, "shape": array.shape, "datatype": NAMES[array.dtype], "data": array.ravel()}
        for spec, array in zip(specs, loaded_model.example, strict=True)
    ]
    body = orjson.dumps({"inputs": inputs}, option=orjson.OPT_SERIALIZE_NUMPY)
    head = f"POST /v2/models/{settings.model_name}/infer HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
