"""How a model is asked, through the API server: nothing has to be opened on this machine first. Pure."""

from __future__ import annotations

import msgspec

from skysail.base import untrusted_json
from skysail.base.errors import UserError
from skysail.kinds.serving.spec.desired import Serving
from skysail.kinds.serving.spec.runtimes import Row
from skysail.kube.api.resources import SERVICE


class Unanswerable(UserError):
    """The model cannot be asked this; the message says what to do."""


def place(serving: Serving, path: str) -> str:
    """The path of the API server at which the model's Service answers."""
    if not serving.doors:
        name = serving.object.metadata.name
        raise Unanswerable(f"{name} has no Service to ask it at: set spec.expose to true.")
    door = serving.doors[0]
    return f"{SERVICE.path(serving.object.metadata.namespace, f'http:{door.name}:{door.port}', 'proxy')}{path}"


def path(row: Row, model: str, asked: bytes) -> str:
    """Where a request belongs: `inputs` is a word of the Open Inference Protocol."""
    data = _data(row, asked)
    is_protocol = isinstance(data, dict) and "inputs" in data and row.rows != "inputs"
    return row.infer_path(model) if is_protocol else row.predict_path(model)


def question(row: Row, text: str) -> bytes:
    """What is sent. Bare rows are put into the field in which this server looks for them."""
    data = _data(row, text)
    if isinstance(data, list) and row.rows:
        data = {row.rows: data}
    return msgspec.json.encode(data)


def _data(row: Row, written: bytes | str) -> object:
    try:
        return untrusted_json.read(written, object)
    except untrusted_json.Unreadable as error:
        example = f'{{"{row.rows or "inputs"}": [[1.0, 2.0]]}}'
        raise Unanswerable(f"--data is no JSON ({error}). Such as: --data '{example}'") from error
