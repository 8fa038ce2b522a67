"""Inference requests through the API server's Service proxy. Pure."""

from __future__ import annotations

import msgspec

from skysail.base import untrusted_json
from skysail.base.errors import UserError
from skysail.kinds.serving.spec.desired import Serving
from skysail.kinds.serving.spec.runtimes import Row
from skysail.kube.api.resources import SERVICE


class Unanswerable(UserError):
    """The request cannot be sent. The message says what to do."""


def place(serving: Serving, path: str) -> str:
    """Return the path of the model's Service at the API server."""
    if not serving.doors:
        name = serving.object.metadata.name
        raise Unanswerable(f"{name} has no Service: set spec.expose to true.")
    door = serving.doors[0]
    return f"{SERVICE.path(serving.object.metadata.namespace, f'http:{door.name}:{door.port}', 'proxy')}{path}"


def path(row: Row, model: str, asked: bytes) -> str:
    """Return the URL path for a request: `inputs` belongs to the Open Inference Protocol."""
    data = _data(row, asked)
    is_protocol = isinstance(data, dict) and "inputs" in data and row.rows != "inputs"
    return row.infer_path(model) if is_protocol else row.predict_path(model)


def question(row: Row, text: str) -> bytes:
    """Build the request body. Bare rows are put into the field that this server reads."""
    data = _data(row, text)
    if isinstance(data, list) and row.rows:
        data = {row.rows: data}
    return msgspec.json.encode(data)


def _data(row: Row, written: bytes | str) -> object:
    try:
        return untrusted_json.read(written, object)
    except untrusted_json.Unreadable as error:
        example = f'{{"{row.rows or "inputs"}": [[1.0, 2.0]]}}'
        raise Unanswerable(f"--data is not valid JSON ({error}). Example: --data '{example}'") from error
