"""Run a command in a container through the API server, with data for its standard input."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus

import aiohttp
import msgspec

from skysail.kube.api.resources import POD
from skysail.kube.client import errors
from skysail.kube.client.errors import ReplyLost, Unreachable
from skysail.kube.client.kubeconfig import Access

_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_STDIN, _STDOUT, _STDERR, _RESULT = range(4)
_CONNECT_SECONDS = 10.0


class Output(msgspec.Struct, frozen=True):
    """Output of a command, and the reason of its failure; empty if it succeeded."""

    stdout: str
    stderr: str
    failure: str


class _Result(msgspec.Struct):
    status: str = ""
    message: str = ""


async def run(
    access: Access,
    namespace: str,
    pod: str,
    container: str,
    command: Sequence[str],
    stdin: AsyncIterator[bytes] | None = None,
) -> Output:
    """Run the command, and send it all of `stdin`. Raises KubeError.

    The end of the input is not sent, because older API servers cannot: the command must know its length.
    """
    query = [("container", container), ("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
    query += [("command", word) for word in command]
    token = await access.plugin.token() if access.plugin is not None else access.token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
    async with aiohttp.ClientSession(connector=_connector(access.tls), timeout=timeout) as session:
        try:
            async with session.ws_connect(
                access.server + POD.path(namespace, pod, "exec"),
                params=query,
                headers=headers,
                protocols=_PROTOCOLS,
                max_msg_size=0,
            ) as connection:
                return await _converse(connection, stdin)
        except aiohttp.WSServerHandshakeError as error:
            raise errors.from_reply(error.status, b"") from error
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unreachable(f"Cannot reach {access.server}: {error}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ReplyLost(f"exec in pod {pod}: connection interrupted ({error})") from error


def _connector(tls: ssl.SSLContext) -> aiohttp.TCPConnector:
    return aiohttp.TCPConnector(ssl=tls)


async def _converse(connection: aiohttp.ClientWebSocketResponse, stdin: AsyncIterator[bytes] | None) -> Output:
    if stdin is not None:
        async for chunk in stdin:
            await connection.send_bytes(bytes([_STDIN]) + chunk)
    found = {_STDOUT: b"", _STDERR: b"", _RESULT: b""}
    async for message in connection:
        if message.type is aiohttp.WSMsgType.BINARY and message.data and message.data[0] in found:
            found[message.data[0]] += message.data[1:]
    return Output(
        found[_STDOUT].decode(errors="replace"), found[_STDERR].decode(errors="replace"), _failure(found[_RESULT])
    )


def _failure(result: bytes) -> str:
    if not result:
        return "the connection ended before the command did"
    try:
        decoded = msgspec.json.decode(result, type=_Result)
    except msgspec.DecodeError:
        return result.decode(errors="replace")
    return "" if decoded.status == "Success" else decoded.message or f"status {HTTPStatus.INTERNAL_SERVER_ERROR}"
