"""Messages of the API server about an invalid object. Pure."""

from __future__ import annotations

import re

from skysail.kube.api.resources import Resource

_HTTP_STATUS = re.compile(r" \(HTTP \d+( \w+)?\)$")


def is_about_content(message: str, resource: Resource) -> bool:
    """Return whether the error is about the content of the object, not about permissions, namespace or quota."""
    return _prefix(resource).match(message) is not None


def field_errors(message: str, resource: Resource) -> str:
    """Return the part of the message that names the fields: without the object, the HTTP status and the full stop."""
    return _HTTP_STATUS.sub("", _prefix(resource).sub("", message)).strip().removesuffix(".")


def _prefix(resource: Resource) -> re.Pattern[str]:
    """Return the pattern of the prefix that names the object."""
    kind = re.escape(f"{resource.kind}.{resource.group}")
    return re.compile(rf"^failed to [a-z ]+object \([^)]*\)( to proper version)?: |^{kind} \"[^\"]*\" is invalid: ")
