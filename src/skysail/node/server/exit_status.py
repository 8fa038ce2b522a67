"""Exit status of a command, as a Status object on the error stream. kubectl takes its exit code from it."""

from __future__ import annotations

from typing import Any

import msgspec

_SUCCESS = {"metadata": {}, "status": "Success"}


class ExitStatus(msgspec.Struct, frozen=True):
    """An exit code, or a `fault` if there is none."""

    code: int = 0
    fault: str = ""

    @property
    def is_success(self) -> bool:
        return not self.code and not self.fault

    def encode(self, *, plain: bool) -> bytes:
        """Encode for the error stream. Old protocols use plain text, which is empty for success."""
        if plain:
            return b"" if self.is_success else self._message.encode()
        return msgspec.json.encode(self._status)

    @property
    def _message(self) -> str:
        return self.fault or f"command terminated with non-zero exit code: {self.code}"

    @property
    def _status(self) -> dict[str, Any]:
        if self.is_success:
            return _SUCCESS
        failure = {"metadata": {}, "status": "Failure", "message": self._message}
        if self.fault:
            return {**failure, "reason": "InternalError", "code": 500}
        causes = [{"reason": "ExitCode", "message": str(self.code)}]
        return {**failure, "reason": "NonZeroExitCode", "details": {"causes": causes}}
