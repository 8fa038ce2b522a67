"""What a simulated cloud and its client say to each other, beside the types of the contract."""

from __future__ import annotations

from typing import Literal

import msgspec

from skysail.cloud.errors import Gone, NoCapacity, OutcomeUnknown, ProviderError, Rejected, Throttled, Unsupported
from skysail.cloud.provider import Output


class ErrorMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An error of `cloud.errors`."""

    kind: Literal["Gone", "Refused", "Unsupported", "NoCapacity", "Throttled", "Unknown"]
    message: str
    reason: str = ""
    retry_after: float = 0.0

    @classmethod
    def of(cls, error: ProviderError) -> ErrorMessage:
        match error:
            case Rejected():
                return cls(kind="Refused", message=str(error), reason=error.reason)
            case Throttled():
                return cls(kind="Throttled", message=str(error), retry_after=error.retry_after)
            case Gone():
                return cls(kind="Gone", message=str(error))
            case Unsupported():
                return cls(kind="Unsupported", message=str(error))
            case NoCapacity():
                return cls(kind="NoCapacity", message=str(error))
            case _:
                return cls(kind="Unknown", message=str(error))

    def error(self) -> ProviderError:
        match self.kind:
            case "Refused":
                return Rejected(self.reason, self.message)
            case "Throttled":
                return Throttled(self.message, self.retry_after)
            case "Gone":
                return Gone(self.message)
            case "Unsupported":
                return Unsupported(self.message)
            case "NoCapacity":
                return NoCapacity(self.message)
            case "Unknown":
                return OutcomeUnknown(self.message)

    @property
    def status(self) -> int:
        """Of the reply over HTTP."""
        if self.reason == "Unauthorized":
            return 401
        return {"Gone": 404, "Throttled": 429, "Unknown": 500, "Unsupported": 405}.get(self.kind, 422)


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """The first answer: the command runs, or the port is connected."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The first answer instead: there is nothing to talk to."""

    problem: ErrorMessage


class Data(msgspec.Struct, frozen=True, tag="data"):
    """To a program or a port, or from a port."""

    data: bytes


class EndOfInput(msgspec.Struct, frozen=True, tag="end"):
    """No more data comes this way."""


class Resize(msgspec.Struct, frozen=True, tag="resize"):
    width: int
    height: int


class Kill(msgspec.Struct, frozen=True, tag="kill"):
    """End the command."""


class OutputChunk(msgspec.Struct, frozen=True, tag="printed"):
    piece: Output


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    code: int


Frame = Opened | Failed | Data | EndOfInput | Resize | Kill | OutputChunk | Exited
MAX_FRAME_BYTES = 64 * 2**20


def encode(frame: Frame) -> bytes:
    return msgspec.msgpack.encode(frame)


def decode(message: bytes) -> Frame:
    """Raises msgspec.MsgspecError."""
    frame: Frame = msgspec.msgpack.decode(message, type=Frame)
    return frame
