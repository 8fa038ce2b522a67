"""Errors of the build, as sentences for the user."""

from __future__ import annotations


class BuildError(Exception):
    """The image cannot be built. The message says what to do."""
