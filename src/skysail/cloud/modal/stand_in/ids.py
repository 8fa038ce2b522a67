"""Object ids in the shapes that the SDK tells apart."""

from __future__ import annotations

import secrets
import string

_ALPHABET = string.digits + string.ascii_letters
_ULID_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_LENGTH = 22
_ULID_LENGTH = 26


def identifier(prefix: str) -> str:
    """Return an id such as `ap-` and 22 letters and digits."""
    return prefix + "-" + "".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH))


def sandbox_id(version: int) -> str:
    """Return a sandbox id. The SDK chooses the back end by its shape."""
    return identifier("sb") if version == 1 else "sb-" + _ulid()


def task_id(version: int) -> str:
    """Return the id of a container. Those of V2 sandboxes end in `V`."""
    return identifier("ta") if version == 1 else "ta-" + _ulid() + "V"


def version_of(sandbox: str) -> int:
    """Return the back end of a sandbox id, by the SDK's own rule."""
    suffix = sandbox.removeprefix("sb-")
    return 1 if len(suffix) == _LENGTH and all(letter in _ALPHABET for letter in suffix) else 2


def _ulid() -> str:
    return "".join(secrets.choice(_ULID_ALPHABET) for _ in range(_ULID_LENGTH))
