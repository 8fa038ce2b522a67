"""Messages between a simulated cloud and its client, besides the types of `cloud.account`."""

from __future__ import annotations

from typing import Literal

import msgspec

from skysail.cloud.errors import Gone, NoCapacity, OutcomeUnknown, ProviderError, Rejected, Throttled, Unsupported
from skysail.cloud.provider import Output


class ErrorMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An error of `cloud.errors`, as JSON."""

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
        """HTTP status of the reply."""
        if self.reason == "Unauthorized":
            return 401
        return {"Gone": 404, "Throttled": 429, "Unknown": 500, "Unsupported": 405}.get(self.kind, 422)


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """First frame from the server: the command runs, or the port is connected."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """First frame from the server instead of `Opened`: the session could not be opened."""

    problem: ErrorMessage


class Data(msgspec.Struct, frozen=True, tag="data"):
    """Bytes to a program or a port, or from a port."""

    data: bytes


class EndOfInput(msgspec.Struct, frozen=True, tag="end"):
    """End of the data in this direction."""


class Resize(msgspec.Struct, frozen=True, tag="resize"):
    width: int
    height: int


class Kill(msgspec.Struct, frozen=True, tag="kill"):
    """Request to kill the command."""


class OutputChunk(msgspec.Struct, frozen=True, tag="printed"):
    piece: Output


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    code: int


Frame = Opened | Failed | Data | EndOfInput | Resize | Kill | OutputChunk | Exited
MAX_FRAME_BYTES = 64 * 2**20


def encode(frame: Frame) -> bytes:
    return msgspec.msgpack.encode(frame)


def decode(message: bytes) -> Frame:
    """Decode a frame. Raises msgspec.MsgspecError."""
    frame: Frame = msgspec.msgpack.decode(message, type=Frame)
    return frame
