"""Contents of a report: what it keeps of an object, an event or a log. Pure.

Specs and annotations are left out, because environment variables and commands in them may be secret. Texts are masked
in addition: credentials that look like those of a cloud or of Kubernetes are replaced.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Mapping
from typing import Any

_MASK = "[masked]"
_CREDENTIALS = re.compile(
    r"""
    \b(?:ak|as)-[A-Za-z0-9]{8,}            # token of Modal
    | \brpa_[A-Za-z0-9]{8,}                # key of RunPod
    | \bhf_[A-Za-z0-9]{8,}                 # token of Hugging Face
    | \beyJ[\w-]+\.[\w-]+\.[\w-]+          # JWT, such as the token of a ServiceAccount
    | (?<=[Bb]earer\ )[\w.~+/=-]{8,}
    | -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----.*?-----END[ ][A-Z ]*PRIVATE[ ]KEY-----
    """,
    re.VERBOSE | re.DOTALL,
)
_METADATA = ("name", "namespace", "uid", "generation", "creationTimestamp", "deletionTimestamp", "finalizers")
_EVENT = ("reason", "note", "type", "regarding", "eventTime", "deprecatedLastTimestamp", "deprecatedCount")


def object_row(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return names, times and status of an object, without its spec and annotations."""
    metadata = manifest.get("metadata") or {}
    return {
        "metadata": {name: metadata[name] for name in _METADATA if name in metadata},
        "status": manifest.get("status") or {},
    }


def event_row(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {name: manifest[name] for name in _EVENT if manifest.get(name) is not None}


def masked(text: str, secrets: Mapping[str, str]) -> str:
    """Replace credentials: by their form, and the given values, such as those of the environment."""
    for value in sorted(filter(None, secrets.values()), key=len, reverse=True):
        text = text.replace(value, _MASK)
    return _CREDENTIALS.sub(_MASK, text)


def archive(files: Mapping[str, str]) -> bytes:
    """Return a tar.gz of these texts. The same texts give the same bytes but for the compression's time."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in sorted(files.items()):
            data = text.encode()
            member = tarfile.TarInfo(f"skysail-report/{name}")
            member.size = len(data)
            member.mode = 0o600
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()
