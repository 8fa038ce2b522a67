"""Address of a model: scheme, PVC and path. Pure.

The egress policy of the download decides which addresses are forbidden; this module checks the form of each scheme.
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


def image_path(uri: str) -> str:
    """Return the path inside the server image; empty for a model that is downloaded."""
    parts = _parts(uri)
    return unquote(parts.path) if parts is not None and parts.scheme == "file" else ""


def pvc_name(uri: str) -> str:
    """Return the name of the PVC that the model is copied from; empty for other sources."""
    parts = _parts(uri)
    return parts.netloc if parts is not None and parts.scheme == "pvc" else ""


def suffix(uri: str) -> str:
    """Return the file name extension in lower case, such as `.onnx`; empty if there is none."""
    parts = _parts(uri)
    return posixpath.splitext(parts.path)[1].lower() if parts is not None else ""


def is_downloaded_script(script: str) -> bool:
    """Return whether a validation script is downloaded; otherwise it is in the image or the ConfigMap."""
    parts = _parts(script)
    return parts is not None and parts.scheme in _DOWNLOADED_SCRIPT


def validate(uri: str, allowed: Sequence[str]) -> str | None:
    """Return why a model address is invalid, as a sentence with the fix, or None if it is valid."""
    found = address_policy.validate_uri(uri, allowed)
    if found is not None:
        return found
    parts = urlsplit(uri)
    form = _FORMS.get(parts.scheme)
    return form(parts) if form else None


def _bucket(parts: SplitResult) -> str | None:
    if parts.path.strip("/"):
        return None
    return f"The address names a whole bucket: add the path of the model, as in {parts.scheme}://bucket/path."


def _hub(parts: SplitResult) -> str | None:
    if _REPOSITORY.fullmatch(parts.path):
        return None
    return "The address names no repository: write hf://owner/name, hf://owner/name@revision or hf://owner/name/path."


def _registry(parts: SplitResult) -> str | None:
    if parts.path.strip("/"):
        return None
    return "The address names no image: write oci://registry/repository:tag or oci://registry/repository@sha256:digest."


def _volume(parts: SplitResult) -> str | None:
    return None if _CLAIM.fullmatch(parts.netloc) else "The address names no PVC: write pvc://name/path."


def _file(parts: SplitResult) -> str | None:
    path = unquote(parts.path)
    if not path.strip("/"):
        return "The address names no path of the image: write file:///path, with three slashes."
    return (
        None if posixpath.normpath(path) == path else "The path is not normalized: write it without `.`, `..` and `//`."
    )


_FORMS: Mapping[str, Callable[[SplitResult], str | None]] = {
    "s3": _bucket,
    "gs": _bucket,
    "hf": _hub,
    "oci": _registry,
    "pvc": _volume,
    "file": _file,
}


def _parts(uri: str) -> SplitResult | None:
    """Return the parts of the address, or None if it cannot be parsed, which the egress policy reports."""
    try:
        return urlsplit(uri)
    except ValueError:
        return None
