"""Errors that a person at a terminal can do something about."""

from __future__ import annotations


class UserError(Exception):
    """Its text is a sentence with the fix in it. The command line prints it and ends with `exit_code`."""

    exit_code = 2
