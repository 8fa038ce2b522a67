"""Dispatch of RPCs: record the call, authenticate it, apply the faults of the script, and run its handler."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec
from google.protobuf.message import Message
from grpclib import GRPCError, Status
from grpclib.server import Stream
from modal_proto import api_pb2

from skysail.cloud.modal.stand_in.connections import Connections
from skysail.cloud.modal.stand_in.faults import OF_SANDBOX, Fault, FaultScript

_MAX_REPLIES = 10_000


class Call(msgspec.Struct, frozen=True):
    """One call: its RPC, its metadata, and the faults of the sandbox that it may create."""

    rpc: str
    metadata: Mapping[str, Any]
    faults: tuple[Fault, ...] = ()


Reply = Awaitable[Message] | AsyncIterator[Message]
Handler = Callable[[Any, Call], Reply]
# A handler that reads a stream of requests itself.
StreamHandler = Callable[[Stream[Any, Any], Call], Awaitable[None]]
Authenticator = Callable[[Call], None]


class CallLog:
    """Calls by RPC, in order, and those that the stand-in does not know, which make a test fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.unknown_calls: list[str] = []

    def counts(self) -> Counter[str]:
        return Counter(self.calls)

    def add_unknown(self, what: str) -> GRPCError:
        self.unknown_calls.append(what)
        return GRPCError(Status.UNIMPLEMENTED, f"The stand-in does not know {what}.")


class Dispatcher:
    """Serves the RPCs of one gRPC service."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        log: CallLog,
        authenticate: Authenticator,
        script: FaultScript,
        connections: Connections,
        stream_handlers: Mapping[str, StreamHandler] | None = None,
    ) -> None:
        self._handlers = handlers
        self._stream_handlers = stream_handlers or {}
        self._log = log
        self._authenticate = authenticate
        self._script = script
        self._connections = connections
        # Replies by idempotency key: a retry inside one call of the SDK must not execute it again.
        self._replies: dict[tuple[str, str], Message] = {}

    def bind(self, base: type) -> Any:
        """Return an implementation of the generated class, with every RPC of the service."""
        methods = {name: self._method(name) for name in base.__abstractmethods__}  # type: ignore[attr-defined]
        return type("Bound", (base,), methods)()

    def _method(self, rpc: str) -> Callable[[Any, Stream[Any, Any]], Awaitable[None]]:
        async def serve(_: Any, stream: Stream[Any, Any]) -> None:
            await self._serve(rpc, stream)

        return serve

    async def _serve(self, rpc: str, stream: Stream[Any, Any]) -> None:
        self._log.calls.append(rpc)
        metadata = dict(stream.metadata or {})
        faults = self._script.take(rpc)
        call = Call(rpc, metadata, tuple(fault for fault in faults if fault.kind in OF_SANDBOX))
        if rpc in self._stream_handlers:
            self._authenticate(call)
            await self._stream_handlers[rpc](stream, call)
            return
        handler = self._handlers.get(rpc)
        if handler is None:
            raise self._log.add_unknown(rpc)
        request = await stream.recv_message()
        for fault in faults:
            await self._apply(fault)
        self._authenticate(call)
        reply = handler(request, call)
        if isinstance(reply, AsyncIterator):
            async for message in reply:
                await stream.send_message(message)
            return
        message = await self._once(rpc, metadata, reply)
        if any(fault.kind == "lost-reply" for fault in faults):
            self._connections.cut()
            await asyncio.Event().wait()  # until the connection is gone, and this task with it
        if any(fault.kind == "unanswered" for fault in faults):
            await asyncio.Event().wait()
        await stream.send_message(message)

    async def _once(self, rpc: str, metadata: Mapping[str, Any], reply: Awaitable[Message]) -> Message:
        """Return the reply of an earlier attempt with the same idempotency key, or the new one."""
        key = (rpc, str(metadata.get("x-idempotency-key", "")))
        if key[1] and key in self._replies:
            if asyncio.iscoroutine(reply):
                reply.close()
            return self._replies[key]
        message = await reply
        if key[1]:
            self._replies[key] = message
            while len(self._replies) > _MAX_REPLIES:
                self._replies.pop(next(iter(self._replies)))
        return message

    async def _apply(self, fault: Fault) -> None:
        """Apply a fault that comes before the execution."""
        match fault.kind:
            case "throttled":
                policy = api_pb2.RPCRetryPolicy(retry_after_secs=fault.seconds)
                raise GRPCError(Status.RESOURCE_EXHAUSTED, "Too many requests.", [policy])
            case "exhausted":
                raise GRPCError(Status.RESOURCE_EXHAUSTED, "The limit of the workspace is reached.")
            case "unavailable":
                raise GRPCError(Status.UNAVAILABLE, "The service is unavailable.")
            case "internal":
                raise GRPCError(Status.INTERNAL, "Internal error of the service.")
            case "unauthenticated":
                raise GRPCError(Status.UNAUTHENTICATED, "The token was revoked.")
            case "slow":
                await asyncio.sleep(fault.seconds)
            case "stuck":
                await asyncio.Event().wait()
            case "cut":
                self._connections.cut()
                await asyncio.Event().wait()
            case "black-hole":
                self._connections.hold()
                asyncio.get_running_loop().call_later(fault.seconds, self._connections.release)
                await asyncio.Event().wait()
            case _:
                return
