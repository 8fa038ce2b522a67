"""The command, with the flags of `tensorflow_model_server` that Skysail gives."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from skysail.runtimes.tensorflow_serving.model import Misasked, Model, NoModel

_NO_MODEL = 65
_LONGEST_BODY = 64 * 2**20


class Page(Exception):
    """An answer other than the one that was asked for."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        self.message = message


def main() -> int:
    options = _options()
    try:
        model = Model(Path(options.model_base_path))
    except (NoModel, OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return _NO_MODEL
    server = ThreadingHTTPServer(("", options.rest_api_port), _handler(Rest(options.model_name, model)))
    # Not daemons: whoever has asked is answered before the process ends.
    server.daemon_threads = False
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    sys.stderr.write(f"Serving {options.model_name} version {model.version} on port {options.rest_api_port}\n")
    server.serve_forever()
    server.server_close()
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tensorflow_model_server")
    parser.add_argument("--rest_api_port", type=int, default=8501)
    parser.add_argument("--port", type=int, default=8500, help="gRPC, which is not served here")
    parser.add_argument("--model_name", default="default")
    parser.add_argument("--model_base_path", required=True)
    return parser.parse_args()


class Rest:
    """What is answered to whom."""

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


def _handler(rest: Rest) -> type[BaseHTTPRequestHandler]:
    """One class for each server, because the standard library makes an instance of it for each connection."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(lambda: rest.read(self.path))

        def do_POST(self) -> None:
            self._answer(lambda: rest.predict(self.path, self._body()))

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the name of the standard library)
            """A line for each request would be all that a log has."""

        def _body(self) -> bytes:
            length = int(self.headers.get("Content-Length") or 0)
            if length <= _LONGEST_BODY:
                return self.rfile.read(length)
            self.close_connection = True
            raise Page(413, f"A request has at most {_LONGEST_BODY} bytes")

        def _answer(self, answer: Callable[[], Any]) -> None:
            try:
                status, content = 200, answer()
            except Page as page:
                status, content = page.status, {"error": page.message}
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


if __name__ == "__main__":
    sys.exit(main())
