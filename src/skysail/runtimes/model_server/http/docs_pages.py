"""FastAPI pages: the model's metadata, and the documentation of all requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from skysail.runtimes.model_server.models import Signature
from skysail.runtimes.model_server.tensors import Spec

_PREDICT = {"features": [[1.0, 2.0]]}
_INFER = {"inputs": [{"name": "input0", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]}]}


class About(msgspec.Struct, frozen=True, kw_only=True):
    """Model data for the metadata."""

    name: str
    version: str
    platform: str
    signature: Signature


def make(server: str, about: Callable[[], About | None]) -> FastAPI:
    """Create the FastAPI application. `about` returns None until the model is loaded."""
    app = FastAPI(title="fastapi-pytorch", version=server, redoc_url=None)
    app.add_exception_handler(HTTPException, _refused)

    @app.get("/v2", summary="About the server")
    async def of_server() -> dict[str, Any]:
        return {"name": "fastapi-pytorch", "version": server, "extensions": []}

    # These routes come first, because a version may contain slashes and would match the rest.
    @app.get("/v2/models/{name}/ready", include_in_schema=False)
    @app.get("/v2/models/{name}/versions/{version:path}/ready", include_in_schema=False)
    @app.post("/v2/models/{name}/infer", include_in_schema=False)
    @app.post("/v2/models/{name}/versions/{version:path}/infer", include_in_schema=False)
    async def of_another(name: str, version: str = "") -> None:
        """Reject requests for another model or version; those for this model are answered before."""
        _known(about(), name, version)
        raise HTTPException(404, "The page does not exist.")

    @app.get("/v2/models/{name}", summary="Inputs and outputs of the model")
    @app.get("/v2/models/{name}/versions/{version:path}", summary="Inputs and outputs of a version")
    async def of_model(name: str, version: str = "") -> dict[str, Any]:
        return _metadata(_known(about(), name, version))

    schema = app.openapi()
    schema["paths"] |= {
        "/predict": {"post": _documented("Predict", _PREDICT)},
        "/v2/models/{name}/infer": {"post": _documented("Predict, by the Open Inference Protocol", _INFER)},
    } | {path: {"get": _documented(summary)} for path, summary in _PROBES.items()}
    return app


_PROBES = {
    "/v2/health/live": "Whether the server answers",
    "/v2/health/ready": "Whether the model is ready",
    "/v2/models/{name}/ready": "Whether the model is ready",
    "/metrics": "Counts for Prometheus",
    "/stats": "Requests in each 10 s of the last ten minutes",
}


def _documented(summary: str, example: object = None) -> dict[str, Any]:
    body = {"requestBody": {"required": True, "content": {"application/json": {"example": example}}}} if example else {}
    return {"summary": summary, "responses": {"200": {"description": "The answer"}}} | body


def _known(about: About | None, name: str, version: str) -> About:
    if about is None:
        raise HTTPException(503, "The model is loading: retry soon.", {"retry-after": "1"})
    if name != about.name:
        raise HTTPException(404, f"Model `{name}` does not exist: this server has `{about.name}`.")
    if version not in {"", about.version}:
        if about.version:
            raise HTTPException(404, f"Version `{version}` of `{name}` does not exist: use `{about.version}`.")
        raise HTTPException(404, f"Version `{version}` of `{name}` does not exist: the model has no versions.")
    return about


def _metadata(about: About) -> dict[str, Any]:
    return {
        "name": about.name,
        "versions": [about.version] if about.version else [],
        "platform": about.platform,
        "inputs": [_tensor_metadata(spec) for spec in about.signature.inputs],
        "outputs": [_tensor_metadata(spec) for spec in about.signature.outputs],
    }


def _tensor_metadata(spec: Spec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)
