"""Inference requests through the API server's Service proxy. Pure."""

from __future__ import annotations

import msgspec

from skysail.base import untrusted_json
from skysail.base.errors import UserError
from skysail.kinds.serving.spec.desired import DesiredModel
from skysail.kinds.serving.spec.runtimes import ServingRuntime
from skysail.kube.api.resources import SERVICE


class CannotAsk(UserError):
    """The request cannot be sent. The message says what to do."""


def service_proxy_path(desired: DesiredModel, path: str) -> str:
    """Return the path of the model's Service at the API server."""
    if not desired.services:
        name = desired.object.metadata.name
        raise CannotAsk(f"{name} has no Service: set spec.expose to true.")
    service = desired.services[0]
    return f"{SERVICE.path(desired.object.metadata.namespace, f'http:{service.name}:{service.port}', 'proxy')}{path}"


def endpoint(runtime: ServingRuntime, model: str, asked: bytes) -> str:
    """Return the URL path for a request: `inputs` belongs to the Open Inference Protocol."""
    data = _data(runtime, asked)
    is_protocol = isinstance(data, dict) and "inputs" in data and runtime.instances_field != "inputs"
    return runtime.infer_path(model) if is_protocol else runtime.predict_path(model)


def body(runtime: ServingRuntime, text: str) -> bytes:
    """Build the request body. Bare rows are put into the field that this server reads."""
    data = _data(runtime, text)
    if isinstance(data, list) and runtime.instances_field:
        data = {runtime.instances_field: data}
    return msgspec.json.encode(data)


def _data(runtime: ServingRuntime, written: bytes | str) -> object:
    try:
        return untrusted_json.decode(written, object)
    except untrusted_json.InvalidJson as error:
        example = f'{{"{runtime.instances_field or "inputs"}": [[1.0, 2.0]]}}'
        raise CannotAsk(f"--data is not valid JSON ({error}). Example: --data '{example}'") from error
