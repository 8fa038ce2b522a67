"""The keys of the user's Secret, as they come into the pod: each behind a prefix that means nothing to any program.

Without it a Secret could name a proxy, a library to load or a folder of modules (`HTTPS_PROXY`, `LD_PRELOAD`,
`PYTHONPATH`), and so lead a download around its guard. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = "SKYSAIL_SECRET_"


def of(environment: Mapping[str, str]) -> dict[str, str]:
    """By the names that they have in the Secret. Editors end files with a new line, which is no part of any key."""
    ours = {name.removeprefix(PREFIX): value for name, value in environment.items() if name.startswith(PREFIX)}
    return {name: value.rstrip("\r\n") for name, value in ours.items()}
