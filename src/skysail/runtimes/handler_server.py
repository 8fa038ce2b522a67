"""Serve one Python function over HTTP, in a tenant's container at a cloud.

Stands alone: it needs Python 3.8 and the standard library. Variables: `SKYSAIL_HANDLER` (module.function),
`SKYSAIL_RETURNS` (`json` or `any`), `SKYSAIL_PORT`, `SKYSAIL_TIMEOUT` (seconds of one call) and `SKYSAIL_CONCURRENCY`
(concurrent calls). The server listens only after the function was imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import importlib
import inspect
import json
import os
import signal
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as CallTimeout
from types import SimpleNamespace
from typing import Any, Awaitable, Callable, Iterable, Iterator, Tuple, Union  # noqa: UP035 (Python 3.8)
from urllib.parse import SplitResult, parse_qs, urlsplit

# Exit code if the function cannot be imported. The operator knows it.
HANDLER_NOT_FOUND = 78
READY_PATH = "/_skysail/ready"
_TERMINATION_LOG = "/dev/termination-log"
_MAX_BODY_BYTES = 256 * 2**20
_MAX_MESSAGE_LENGTH = 2000
_IDLE_SECONDS = 75
_DRAIN_SECONDS = 20.0
# Connections are accepted for a while after SIGTERM, until no Service sends new ones here.
_LINGER_SECONDS = 5.0
_BODIES = ("POST", "PUT", "PATCH")
_JSON = "application/json"

Answer = Tuple[int, str, Union[bytes, Iterator[bytes]]]  # noqa: UP006, UP007 (evaluated by Python 3.8)


class HandlerNotFound(Exception):
    """The function cannot be imported. The text says why."""


class _BadCall(Exception):
    """The request does not fit the function: status and a sentence for the caller."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def load(handler: str) -> Callable[..., Any]:
    """Return the function of a name such as `app.handler`. Raises HandlerNotFound."""
    module_name, _, name = handler.rpartition(".")
    if not module_name:
        raise HandlerNotFound(f"Handler {handler} names no module: write module.function.")
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:  # the module is foreign code, which may raise anything
        traceback.print_exc()
        raise HandlerNotFound(f"Module {module_name} cannot be imported: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if function is None or not callable(function):
        raise HandlerNotFound(f"Module {module_name} has no function {name}.")
    return function  # type: ignore[no-any-return]


class HandlerApp:
    """Calls the function: arguments from a request, result as the body of an answer."""

    def __init__(
        self, function: Callable[..., Any], *, returns: str = "json", timeout: float = 300.0, concurrency: int = 1
    ) -> None:
        self._function = function
        self._returns = returns
        self._timeout = timeout
        self._executor = ThreadPoolExecutor(max_workers=concurrency)
        self._signature = inspect.signature(function)
        self._takes_request = returns == "any" and list(self._signature.parameters) == ["request"]

    def answer(self, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes) -> Answer:
        """Return status, content type, and the body as bytes or as an iterator of bytes."""
        url = urlsplit(target)
        if url.path == READY_PATH:
            return 200, "text/plain", b"ok\n"
        try:
            arguments, named = self._arguments(method, url, headers, body)
            return self._encode(self._executor.submit(self._call, arguments, named).result(self._timeout))
        except _BadCall as error:
            return error.status, _JSON, _json({"error": str(error)})
        except CallTimeout:
            return 504, _JSON, _json({"error": "TimeoutError"})
        except Exception as error:  # noqa: BLE001 (foreign code; its message may hold secrets, so only the type is sent)
            traceback.print_exc()
            return 500, _JSON, _json({"error": type(error).__name__})

    def _arguments(
        self, method: str, url: SplitResult, headers: Iterable[tuple[str, str]], body: bytes
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        query: dict[str, Any] = {
            name: values[0] if len(values) == 1 else values
            for name, values in parse_qs(url.query, keep_blank_values=True).items()
        }
        if self._takes_request:
            request = SimpleNamespace(method=method, path=url.path, query=query, headers=dict(headers), body=body)
            return (request,), {}
        arguments: tuple[Any, ...] = ()
        named = query
        if method in _BODIES and body:
            try:
                value = json.loads(body)
            except ValueError as error:
                raise _BadCall(400, f"The body is not valid JSON: {error}.") from error
            arguments, named = ((), {**query, **value}) if isinstance(value, dict) else ((value,), query)
        try:
            self._signature.bind(*arguments, **named)
        except TypeError as error:
            raise _BadCall(400, f"The arguments do not fit the function: {error}.") from error
        return arguments, named

    def _call(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        result = self._function(*arguments, **named)
        return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result

    def _encode(self, result: Any) -> Answer:
        if self._returns == "any":
            if isinstance(result, bytes):
                return 200, "application/octet-stream", result
            if isinstance(result, str):
                return 200, "text/plain; charset=utf-8", result.encode()
            if inspect.isgenerator(result):
                return 200, "text/event-stream", (_chunk(piece) for piece in result)
        return 200, _JSON, _json(result)


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


def _json(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _chunk(piece: Any) -> bytes:
    return piece if isinstance(piece, bytes) else str(piece).encode()


class _RequestHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS
    server: HandlerServer

    def _serve(self) -> None:
        with self.server.busy:
            try:
                body = self._read_body()
            except _BadCall as error:
                self.close_connection = True
                self._send(error.status, _JSON, _json({"error": str(error)}))
                return
            self._send(*self.server.app.answer(self.command, self.path, self.headers.items(), body))

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _serve  # noqa: N815 (the base class's names)

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            return b"".join(self._chunks())
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit():
            raise _BadCall(400, "Content-Length must be a number.")
        if int(length) > _MAX_BODY_BYTES:
            raise _BadCall(413, f"The body is above the limit of {_MAX_BODY_BYTES} bytes.")
        return self.rfile.read(int(length))

    def _chunks(self) -> Iterator[bytes]:
        total = 0
        while True:
            try:
                size = int(self.rfile.readline(64).split(b";")[0], 16)
            except ValueError as error:
                raise _BadCall(400, "The body is malformed.") from error
            total += size
            if size < 0 or total > _MAX_BODY_BYTES:
                raise _BadCall(413, f"The body is above the limit of {_MAX_BODY_BYTES} bytes.")
            piece = self.rfile.read(size)
            self.rfile.readline(64)
            if not size:
                return
            yield piece

    def _send(self, status: int, kind: str, body: bytes | Iterator[bytes]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if self.server.is_stopping:
            self.send_header("Connection", "close")
            self.close_connection = True
        if isinstance(body, bytes):
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for piece in body:
                if piece:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                    self.wfile.flush()
        except Exception:  # noqa: BLE001 (foreign code; without the last chunk the caller knows that it broke)
            traceback.print_exc()
            self.close_connection = True
            return
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's)
        """Write no line per request: paths may hold secrets."""


class _Busy:
    """Counts requests in progress."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def wait_idle(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._count == 0, seconds)


class HandlerServer(http.server.ThreadingHTTPServer):
    """Listens on all addresses. `stop` ends `serve_forever`; requests in progress go on."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, app: HandlerApp, port: int) -> None:
        self.app = app
        self.busy = _Busy()
        self.is_stopping = False
        super().__init__(("", port), _RequestHandler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write no traceback for a client that disconnects."""

    def stop(self) -> None:
        self.is_stopping = True
        threading.Event().wait(_LINGER_SECONDS)
        self.shutdown()


def main() -> int:
    environment = os.environ
    try:
        function = load(environment["SKYSAIL_HANDLER"])
    except HandlerNotFound as error:
        text = str(error)[:_MAX_MESSAGE_LENGTH]
        sys.stderr.write(f"{text}\n")
        with contextlib.suppress(OSError), open(_TERMINATION_LOG, "w", encoding="utf-8") as log:  # noqa: PTH123 (a device)
            log.write(text)
        return HANDLER_NOT_FOUND
    app = HandlerApp(
        function,
        returns=environment.get("SKYSAIL_RETURNS", "json"),
        timeout=float(environment.get("SKYSAIL_TIMEOUT", "300")),
        concurrency=int(environment.get("SKYSAIL_CONCURRENCY", "1")),
    )
    server = HandlerServer(app, int(environment.get("SKYSAIL_PORT", "8000")))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: threading.Thread(target=server.stop).start())
    sys.stdout.write(f"serving {environment['SKYSAIL_HANDLER']} on port {server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever(poll_interval=0.1)
    server.socket.close()
    server.busy.wait_idle(_DRAIN_SECONDS)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a call that never returns must not keep the container alive
