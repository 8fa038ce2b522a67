"""Command with the flags of `tensorflow_model_server` that Skysail uses."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from skysail.runtimes.tensorflow_serving.model import Misasked, Model, NoModel
from skysail.runtimes.tensorflow_serving.server import Page, Server

_NO_MODEL = 65
# Part of the pod's 60 s grace period.
_LAST_SECONDS = 50


def main() -> int:
    options = _options()
    try:
        model = Model(Path(options.model_base_path))
    except (NoModel, OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return _NO_MODEL
    server = Server(options.rest_api_port, Rest(options.model_name, model))
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    sys.stderr.write(f"Serving {options.model_name} version {model.version} on port {server.server_port}\n")
    server.serve_forever()
    server.end(_LAST_SECONDS)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tensorflow_model_server")
    parser.add_argument("--rest_api_port", type=int, default=8501)
    parser.add_argument("--port", type=int, default=8500, help="gRPC port; ignored")
    parser.add_argument("--model_name", default="default")
    parser.add_argument("--model_base_path", required=True)
    return parser.parse_args()


class Rest:
    """Routes of the server."""

    def __init__(self, name: str, model: Model) -> None:
        self._name = name
        self._model = model
        self._paths = {f"/v1/models/{name}", f"/v1/models/{name}/versions/{model.version}"}

    def read(self, path: str) -> Any:
        version = str(self._model.version)
        if path in self._paths:
            state = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
            return {"model_version_status": [{"version": version, **state}]}
        if path.removesuffix("/metadata") in self._paths:
            spec = {"name": self._name, "signature_name": "", "version": version}
            return {"model_spec": spec, "metadata": {"signature_def": {"signature_def": self._model.described()}}}
        raise Page(404, f"Servable not found for request: {path}")

    def predict(self, path: str, body: bytes) -> Any:
        if path.removesuffix(":predict") not in self._paths or not path.endswith(":predict"):
            raise Page(404, f"Servable not found for request: {path}")
        try:
            return self._model.predict(json.loads(body))
        except json.JSONDecodeError as error:
            raise Page(400, f"JSON Parse error: {error}") from error
        except Misasked as error:
            raise Page(400, str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
