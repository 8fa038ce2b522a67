"""The words of the API server about a Job that it does not take, for who wrote the TrainingJob. Pure."""

from __future__ import annotations

import re

# Who speaks, and of which object; and at the end how it was answered. What is left names the field.
_ABOUT_JOB = re.compile(
    r"^failed to [a-z ]+object \([^)]*\)( to proper version)?: |^Job\.batch \"[^\"]*\" is invalid: "
)
_ANSWER = re.compile(r" \(HTTP \d+( \w+)?\)$")
_TEMPLATE = re.compile(r"(?<![\w.])\.?spec\.template\.(?=spec\.|metadata\.)")


def is_about_job(said: str) -> bool:
    """Whether it is the Job that is wrong, and not who may make it, where, or how many."""
    return _ABOUT_JOB.match(said) is not None


def sentence(said: str, *, has_template: bool) -> str:
    """With the names that fields have in a TrainingJob."""
    said = _ANSWER.sub("", _ABOUT_JOB.sub("", said)).strip().removesuffix(".")
    if has_template:
        said = _TEMPLATE.sub("spec.podTemplate.", said)
    return f"The API server refuses the pods of this spec: {said}. Correct that field, or remove it."
