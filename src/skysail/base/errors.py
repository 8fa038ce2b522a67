"""Errors that a user at a terminal can fix."""

from __future__ import annotations


class UserError(Exception):
    """A sentence that includes the fix. The command line prints it and exits with `exit_code`."""

    exit_code = 2
