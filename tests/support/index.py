"""A package index of the test's own: wheels made when it runs, which can be refused, held back and counted."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

_WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_TIMEOUT_SECONDS = 600.0


def wheel(name: str, code: str, version: str = "1.0") -> bytes:
    """One module that is nothing but this code."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": _metadata(name, version),
        f"{info}/WHEEL": _WHEEL,
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return packed.getvalue()


def _metadata(name: str, version: str) -> str:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"


class Index:
    """Serves on loopback while entered. Modules are by name; `refuses` and `open` may be changed at any time."""

    def __init__(self, **modules: str) -> None:
        self._wheels: dict[str, bytes] = {}
        for name, code in modules.items():
            self.add(name, "1.0", code)
        self.refuses = False
        self.open = threading.Event()
        self.open.set()
        self.asked = threading.Event()
        self.fetched: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/simple"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def add(self, name: str, version: str, code: str) -> None:
        self._wheels[f"{name}-{version}-py3-none-any.whl"] = wheel(name, code, version)

    def until_asked(self) -> None:
        """Somebody has begun to fetch a module. Whoever should have may have failed, so nobody waits for ever."""
        assert self.asked.wait(_TIMEOUT_SECONDS), "nobody asked the index for a module"

    def answer(self, path: str) -> tuple[int, str, bytes]:
        name = path.rstrip("/").rpartition("/")[2]
        if self.refuses:
            return 403, "text/plain", b"not today\n"
        if name.endswith(".metadata"):
            return 200, "text/plain", _metadata(*name.split("-")[:2]).encode()
        if name in self._wheels:
            self.fetched.append(name)
            self.asked.set()
            self.open.wait()
            return 200, "application/octet-stream", self._wheels[name]
        files = [file for file in self._wheels if file.startswith(f"{name}-")]
        links = [f'<a href="/files/{file}#{self._hash(file)}" data-core-metadata="true">{file}</a>' for file in files]
        return (200, "text/html", "".join(links).encode()) if links else (404, "text/plain", b"")

    def _hash(self, file: str) -> str:
        return f"sha256={hashlib.sha256(self._wheels[file]).hexdigest()}"


def _handler(index: Index) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, kind, body = index.answer(self.path)
            try:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                self.close_connection = True  # who asked has gone, as a test may want it

        def log_message(self, *_: object) -> None:
            pass

    return Handler
