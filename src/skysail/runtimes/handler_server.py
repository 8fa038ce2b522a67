"""Serve one Python function over HTTP, in a tenant's container at a cloud.

Stands alone: it needs Python 3.8 and the standard library. It serves by itself, or as an ASGI app (`asgi`) of a cloud
that has its own server. `serve` starts the server of an image instead. Variables: `SKYSAIL_HANDLER` (module.function),
`SKYSAIL_RETURNS` (`json` or `any`), `SKYSAIL_PORT`, `SKYSAIL_TIMEOUT` (seconds of one call) and `SKYSAIL_CONCURRENCY`
(concurrent calls), and `SKYSAIL_COMMAND` (the server of the image as JSON). The server listens only after the function
was imported.
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
import socket
import subprocess
import sys
import threading
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as CallTimeout
from types import SimpleNamespace
from typing import Any, Awaitable, Callable, Iterable, Iterator, Tuple, Union  # noqa: UP035 (Python 3.8)
from urllib.parse import SplitResult, parse_qs, urlsplit

# Exit code if the function cannot be imported. The operator knows it.
HANDLER_NOT_FOUND = 78
READY_PATH = "/_skysail/ready"
# Header of answers of a container whose function or server cannot run: the reason. The operator knows it.
PROBLEM_HEADER = "X-Skysail-Problem"
_TERMINATION_LOG = "/dev/termination-log"
_MAX_BODY_BYTES = 256 * 2**20
_MAX_MESSAGE_LENGTH = 2000
_IDLE_SECONDS = 75
_DRAIN_SECONDS = 20.0
# Connections are accepted for a while after SIGTERM, until no Service sends new ones here.
_LINGER_SECONDS = 5.0
_BODIES = ("POST", "PUT", "PATCH")
_JSON = "application/json"
_PIECE = 2**20
_POLL_SECONDS = 0.05
# If all calls that may run at once are over their timeout, and none has ended after this long, or after the timeout if
# that is shorter, they count as stuck. Until then they may be only slow.
_STUCK_SECONDS = 30.0
# Time for the last answers before a process ends whose calls are all stuck.
_LAST_ANSWERS_SECONDS = 1.0

Answer = Tuple[int, str, Union[bytes, Iterator[bytes]]]  # noqa: UP006, UP007 (evaluated by Python 3.8)


class HandlerNotFound(Exception):
    """The function cannot be imported. The text says why. `is_transient`: another attempt may succeed."""

    def __init__(self, text: str, *, is_transient: bool = False) -> None:
        super().__init__(text)
        self.is_transient = is_transient


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
        text = f"Module {module_name} cannot be imported: {type(error).__name__}: {error}"
        # Errors of the network are OSErrors, such as those of a module that downloads its weights.
        raise HandlerNotFound(text, is_transient=isinstance(error, OSError)) from error
    function = getattr(module, name, None)
    if function is None or not callable(function):
        raise HandlerNotFound(f"Module {module_name} has no function {name}.")
    return function  # type: ignore[no-any-return]


def _call_later(seconds: float, function: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()


def _end_process() -> None:
    """End the process soon. No thread can be stopped, so only a new container serves again."""
    sys.stderr.write("All concurrent calls of the function hang, so the container ends.\n")
    sys.stderr.flush()
    _call_later(_LAST_ANSWERS_SECONDS, lambda: os._exit(1))


class HandlerApp:
    """Calls the function: arguments from a request, result as the body of an answer.

    A call over its timeout fails alone, but its thread goes on. `on_stuck` is called when as many calls as may run at
    once are over their timeout, and none of them ends.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        returns: str = "json",
        timeout: float = 300.0,
        concurrency: int = 1,
        on_stuck: Callable[[], None] = _end_process,
        call_later: Callable[[float, Callable[[], None]], None] = _call_later,
    ) -> None:
        self._function = function
        self._returns = returns
        self._timeout = timeout
        self._executor = ThreadPoolExecutor(max_workers=concurrency)
        self._concurrency = concurrency
        self._on_stuck = on_stuck
        self._call_later = call_later
        self._hanging: set[Future[Any]] = set()
        self._signature = inspect.signature(function)
        self._takes_request = returns == "any" and list(self._signature.parameters) == ["request"]

    def answer(self, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes) -> Answer:
        """Return status, content type, and the body as bytes or as an iterator of bytes."""
        url = urlsplit(target)
        if url.path == READY_PATH:
            return 200, "text/plain", b"ok\n"
        try:
            arguments, named = self._arguments(method, url, headers, body)
            call = self._executor.submit(self._call, arguments, named)
            if not self._has_ended(call):
                return 504, _JSON, _json({"error": "TimeoutError"})
            return self._encode(call.result())
        except _BadCall as error:
            return error.status, _JSON, _json({"error": str(error)})
        except (Exception, SystemExit) as error:  # noqa: BLE001 (foreign code; its message may hold secrets)
            traceback.print_exc()
            return 500, _JSON, _json({"error": type(error).__name__})

    def _has_ended(self, call: Future[Any]) -> bool:
        """Wait for the call. Returns whether it has ended in time, with a result or an exception."""
        try:
            call.exception(self._timeout)
        except CallTimeout:
            if not call.cancel():
                self._leave_hanging(call)
        return call.done() and not call.cancelled()

    def _leave_hanging(self, call: Future[Any]) -> None:
        self._hanging.add(call)
        call.add_done_callback(self._hanging.discard)
        hanging = frozenset(self._hanging)
        if len(hanging) >= self._concurrency:
            self._call_later(min(self._timeout, _STUCK_SECONDS), lambda: self._end_if_stuck(hanging))

    def _end_if_stuck(self, hanging: frozenset[Future[Any]]) -> None:
        if hanging <= self._hanging:
            self._on_stuck()

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


class AsgiApp:
    """The function as an ASGI app. WebSockets are refused."""

    def __init__(self, app: HandlerApp, concurrency: int) -> None:
        self._app = app
        self._executor = ThreadPoolExecutor(max_workers=concurrency)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1003})

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        body = await _body(receive)
        if body is None:
            text = f"The body is above the limit of {_MAX_BODY_BYTES} bytes."
            await _send(send, 413, _JSON, _json({"error": text}))
            return
        query = scope.get("query_string", b"").decode("latin-1")
        target = scope["path"] + (f"?{query}" if query else "")
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        answering = (self._app.answer, scope["method"], target, headers, body)
        status, kind, answer = await self._run(*answering)
        if isinstance(answer, bytes):
            await _send(send, status, kind, b"" if scope["method"] == "HEAD" else answer)
            return
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind.encode())]})
        # An exception of the generator ends the app, so that the caller sees a broken answer.
        while (piece := await self._run(next, answer, None)) is not None:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)


async def _lifespan(receive: Any, send: Any) -> None:
    while (message := await receive())["type"] != "lifespan.shutdown":
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


async def _body(receive: Any) -> bytes | None:
    """Return the body of a request, or None if it is too large."""
    pieces, size, has_more = [], 0, True
    while has_more:
        message = await receive()
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > _MAX_BODY_BYTES:
            return None
        has_more = message.get("more_body", False)
    return b"".join(pieces)


async def _send(send: Any, status: int, kind: str, body: bytes, problem: str = "") -> None:
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    if problem:
        headers.append((PROBLEM_HEADER.lower().encode(), problem.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for start in range(0, len(body), _PIECE):
        await send({"type": "http.response.body", "body": body[start : start + _PIECE], "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def asgi() -> Callable[[Any, Any, Any], Awaitable[None]]:
    """Return the ASGI app of the environment. A function that cannot be imported answers with the reason."""
    try:
        function = load(os.environ["SKYSAIL_HANDLER"])
    except HandlerNotFound as error:
        return _problem_app("ImportFailed" if error.is_transient else "HandlerNotFound", str(error))
    return AsgiApp(_handler_app(function), int(os.environ.get("SKYSAIL_CONCURRENCY", "1")))


def _problem_app(reason: str, text: str) -> Callable[[Any, Any, Any], Awaitable[None]]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            await _send(send, 503, _JSON, _json({"error": text[:_MAX_MESSAGE_LENGTH]}), reason)

    return app


def serve() -> None:
    """Start the server of the image, and wait for its port. If the server ends before, each request gets the reason.

    A server that ends later ends the container, so that the cloud starts another one.
    """
    port, command = int(os.environ["SKYSAIL_PORT"]), json.loads(os.environ["SKYSAIL_COMMAND"])
    try:
        child = subprocess.Popen(command)  # noqa: S603 (the tenant's own command, in the tenant's container)
    except OSError as error:
        _serve_problem(port, "StartError", f"The server cannot be started: {error}.")
        return
    while not _is_open(port):
        code = child.poll()
        if code is not None:
            _serve_problem(
                port, "ServerExited", f"The server ended with exit code {code} before it opened port {port}."
            )
            return
        threading.Event().wait(_POLL_SECONDS)
    threading.Thread(target=lambda: os._exit(child.wait() or 1), daemon=True).start()


def _is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _serve_problem(port: int, reason: str, text: str) -> None:
    body = _json({"error": text})

    class Handler(_RequestHandler):
        def _serve(self) -> None:
            self.send_response(503)
            self.send_header(PROBLEM_HEADER, reason)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _serve  # noqa: N815 (as above)

    server = http.server.ThreadingHTTPServer(("", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def _handler_app(function: Callable[..., Any]) -> HandlerApp:
    environment = os.environ
    return HandlerApp(
        function,
        returns=environment.get("SKYSAIL_RETURNS", "json"),
        timeout=float(environment.get("SKYSAIL_TIMEOUT", "300")),
        concurrency=int(environment.get("SKYSAIL_CONCURRENCY", "1")),
    )


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
    server = HandlerServer(_handler_app(function), int(environment.get("SKYSAIL_PORT", "8000")))
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
