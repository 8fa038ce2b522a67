"""The real transport, before a TLS server that is slow to say goodbye."""

import asyncio
import gc
import socket
import ssl
import threading
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from skysail.kube import certificates
from skysail.kube.certificates import KeyPair
from skysail.kube.client.http_transport import HttpTransport
from skysail.kube.client.kubeconfig import Access, load_certificate
from skysail.kube.client.transport import Request

STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"


@pytest.fixture(scope="module")
def authority() -> KeyPair:
    return certificates.certificate_authority("test", now=datetime.now(UTC), valid=timedelta(days=1))


@pytest.fixture
def address(authority: KeyPair) -> Iterator[str]:
    """Of a server that begins a stream and then neither writes nor reads."""
    key_pair = certificates.server(authority, ["127.0.0.1"], now=datetime.now(UTC), valid=timedelta(days=1))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificate(tls, key_pair.certificate, key_pair.key)
    done = threading.Event()

    def serve(listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # shut down before anybody came
        with tls.wrap_socket(connection, server_side=True) as line:
            line.recv(4096)
            line.sendall(STREAM)
            done.wait()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        done.set()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_watch_that_is_left_leaves_no_connection_behind(address: str, authority: KeyPair, tmp_path: Path):
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    tls = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))

    async def main() -> bytes:
        transport = HttpTransport(Access(server=address, tls=tls, token=lambda: ""))
        try:
            async with await transport.open(Request(method="GET", path="/watch")) as stream:
                return await anext(aiter(stream))
        finally:
            await transport.close()

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # what other tests have left
        warnings.simplefilter("always", ResourceWarning)
        assert asyncio.run(main()) == b"hello"
        gc.collect()
    assert [str(warning.message) for warning in found] == []
