"""Escaping of values in `env`, `command` and `args` of a container, where Kubernetes expands `$(NAME)`. Pure."""

from __future__ import annotations


def literal(text: str) -> str:
    """Escape a value so that Kubernetes does not expand `$(NAME)` in it."""
    return text.replace("$", "$$")
