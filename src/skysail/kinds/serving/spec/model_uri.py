"""What the address of a model means: which scheme, which claim, which path of an image. Pure.

Which addresses are forbidden is told by the rules that the download itself keeps to; here is how each scheme is
written.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import SplitResult, unquote, urlsplit

from skysail.runtimes.fetch.network import address_policy

_CLAIM = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_REPOSITORY = re.compile(r"/[^/@]+(@[^/]+)?(/.*)?")
_DOWNLOADED_SCRIPT = ("http", "https")


def in_image(uri: str) -> str:
    """The path inside the server's own image; empty for a model that is downloaded."""
    parts = _parts(uri)
    return unquote(parts.path) if parts is not None and parts.scheme == "file" else ""


def claim(uri: str) -> str:
    """The PersistentVolumeClaim that the model is copied from; empty for one that comes from elsewhere."""
    parts = _parts(uri)
    return parts.netloc if parts is not None and parts.scheme == "pvc" else ""


def suffix(uri: str) -> str:
    """What the name of the file ends with, in lower case, such as `.onnx`; empty where there is nothing of the kind."""
    parts = _parts(uri)
    return posixpath.splitext(parts.path)[1].lower() if parts is not None else ""


def is_downloaded_script(script: str) -> bool:
    """Whether a validation script is downloaded, and not looked for in the image and the ConfigMap."""
    parts = _parts(script)
    return parts is not None and parts.scheme in _DOWNLOADED_SCRIPT


def objection(uri: str, allowed: Sequence[str]) -> str | None:
    """Why a model cannot come from there, as a sentence with the fix in it; None where it can."""
    found = address_policy.objection(uri, allowed)
    if found is not None:
        return found
    parts = urlsplit(uri)
    form = _FORMS.get(parts.scheme)
    return form(parts) if form else None


def _bucket(parts: SplitResult) -> str | None:
    if parts.path.strip("/"):
        return None
    return f"This is a whole bucket: write where the model is in it, as {parts.scheme}://bucket/path."


def _hub(parts: SplitResult) -> str | None:
    if _REPOSITORY.fullmatch(parts.path):
        return None
    return "This names no repository: write hf://owner/name, hf://owner/name@revision or hf://owner/name/path."


def _registry(parts: SplitResult) -> str | None:
    if parts.path.strip("/"):
        return None
    return "This names no image: write oci://registry/repository:tag or oci://registry/repository@sha256:digest."


def _volume(parts: SplitResult) -> str | None:
    return None if _CLAIM.fullmatch(parts.netloc) else "This names no PersistentVolumeClaim: write pvc://claim/path."


def _file(parts: SplitResult) -> str | None:
    path = unquote(parts.path)
    if not path.strip("/"):
        return "This names no path of the image: write file:///path, with three slashes."
    return None if posixpath.normpath(path) == path else "This path is not plain: write it without `.`, `..` and `//`."


_FORMS: Mapping[str, Callable[[SplitResult], str | None]] = {
    "s3": _bucket,
    "gs": _bucket,
    "hf": _hub,
    "oci": _registry,
    "pvc": _volume,
    "file": _file,
}


def _parts(uri: str) -> SplitResult | None:
    """None where it cannot be read, which is an objection of its own."""
    try:
        return urlsplit(uri)
    except ValueError:
        return None
