"""Errors of the API server about a Job, translated to fields of the TrainingJob. Pure."""

from __future__ import annotations

import re

# Prefix that names the object, and suffix with the HTTP status. The rest names the field.
_ABOUT_JOB = re.compile(
    r"^failed to [a-z ]+object \([^)]*\)( to proper version)?: |^Job\.batch \"[^\"]*\" is invalid: "
)
_ANSWER = re.compile(r" \(HTTP \d+( \w+)?\)$")
_TEMPLATE = re.compile(r"(?<![\w.])\.?spec\.template\.(?=spec\.|metadata\.)")


def is_job_invalid(message: str) -> bool:
    """Return whether the error is about the content of the Job, not about permissions, namespace or quota."""
    return _ABOUT_JOB.match(message) is not None


def user_message(message: str, *, has_template: bool) -> str:
    """Return the error as a sentence with the field names of a TrainingJob."""
    message = _ANSWER.sub("", _ABOUT_JOB.sub("", message)).strip().removesuffix(".")
    if has_template:
        message = _TEMPLATE.sub("spec.podTemplate.", message)
    return f"The API server rejects the pods of this spec: {message}. Correct or remove that field."
