"""WebSocket channels, by a real WebSocket client on loopback."""

import asyncio
import base64
import json

import pytest
from aiohttp import ClientSession, WSMsgType, WSServerHandshakeError, web

from skysail.node.server import websocket_channels
from skysail.node.server.errors import Forbidden, PeerGone
from skysail.node.server.websocket_channels import V4, V4_BASE64, V5, Channels
from tests.support.node_backend import listening

NUMBERS = {"stdin": 0, "stdout": 1, "error": 3}


class Echo:
    """Reads all of stdin, then answers on stdout and error, and hangs up."""

    def __init__(self):
        self.heard = None
        self.has_ended = asyncio.Event()

    async def handle(self, request):
        try:
            socket = await websocket_channels.shake_hands(request, (V5, V4, V4_BASE64))
        except Forbidden as refusal:
            return web.Response(status=refusal.status, text=str(refusal))
        user = Channels(socket, NUMBERS)
        await user.streams["stdout"].announce()
        self.heard = b""
        try:
            while data := await user.streams["stdin"].read():
                self.heard += data
                if self.heard.endswith(b"."):
                    break
            await user.streams["stdout"].write(self.heard.upper())
            await user.streams["error"].write(json.dumps({"status": "Success"}).encode())
        except PeerGone:
            self.heard += b" (left)"
        self.has_ended.set()
        return await user.hang_up()


@pytest.fixture
async def echo():
    app, echo = web.Application(), Echo()
    app.router.add_get("/", echo.handle)
    async with ClientSession() as session, listening(app) as url:
        echo.connect = lambda *protocols: session.ws_connect(url, protocols=protocols, max_msg_size=0)
        yield echo


async def told(socket):
    """Everything that the server says, by channel, and its closing code."""
    said = {}
    async for message in socket:
        if message.type is WSMsgType.TEXT:
            number, data = int(message.data[0]), base64.b64decode(message.data[1:])
        else:
            number, data = message.data[0], message.data[1:]
        said[number] = said.get(number, b"") + data
    return said, socket.close_code


SUCCESS = b'{"status": "Success"}'


async def test_v5_tells_the_end_of_input(echo):
    async with echo.connect(V5) as socket:
        await socket.send_bytes(b"\x00hello ")
        await socket.send_bytes(b"\x00world")
        await socket.send_bytes(b"\xff\x00")
        assert await told(socket) == ({1: b"HELLO WORLD", 3: SUCCESS}, 1000)


async def test_the_kubelets_empty_first_message_is_sent(echo):
    async with echo.connect(V5) as socket:
        assert (await socket.receive()).data == b"\x01"


async def test_v4_has_no_end_of_input(echo):
    async with echo.connect(V4) as socket:
        await socket.send_bytes(b"\x00one")
        await socket.send_bytes(b"\xff\x00")
        await socket.send_bytes(b"\x00 two.")
        assert await told(socket) == ({1: b"ONE TWO.", 3: SUCCESS}, 1000)


async def test_base64_is_text(echo):
    async with echo.connect(V4_BASE64) as socket:
        await socket.send_str("0" + base64.b64encode(b"\xffraw.").decode())
        assert await told(socket) == ({1: b"\xffRAW.", 3: SUCCESS}, 1000)


async def test_what_makes_no_sense_is_skipped(echo):
    async with echo.connect(V5) as socket:
        for junk in (b"", b"\x00", b"\x09unknown channel", b"\xff", b"\xff\x09", b"\x04{}"):
            await socket.send_bytes(junk)
        await socket.send_str("text")
        await socket.send_bytes(b"\x00sense.")
        assert (await told(socket))[0][1] == b"SENSE."


@pytest.mark.parametrize("junk", ["", "x", "0%%%", "9aGk=", "0aGk"])
async def test_base64_that_makes_no_sense_is_skipped(echo, junk):
    async with echo.connect(V4_BASE64) as socket:
        await socket.send_str(junk)
        await socket.send_str("0" + base64.b64encode(b"sense.").decode())
        assert (await told(socket))[0][1] == b"SENSE."


async def test_the_first_of_the_clients_protocols_is_taken(echo):
    async with echo.connect("v9.channel.k8s.io", V4, V5) as socket:
        assert socket.protocol == V4


async def test_without_a_common_protocol_nobody_is_served(echo):
    with pytest.raises(WSServerHandshakeError) as refused:
        await echo.connect("v9.channel.k8s.io")
    assert refused.value.status == 403
    assert echo.heard is None


async def test_long_output_is_cut_into_messages(echo):
    async with echo.connect(V5) as socket:
        await socket.send_bytes(b"\x00" + b"x" * 300_000)
        await socket.send_bytes(b"\xff\x00")
        sizes = [len(message.data) - 1 async for message in socket if message.data[0] == 1]
    assert sizes == [0, 131072, 131072, 37856]


async def test_a_peer_that_leaves_is_noticed(echo):
    async with echo.connect(V5) as socket:
        await socket.receive()
    await echo.has_ended.wait()
    assert echo.heard == b" (left)"
