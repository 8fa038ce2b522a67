"""Warning about a program that is launched again and again, because its pod restarts it after each exit. Pure."""

from __future__ import annotations

_MESSAGE = (
    "spec.restartPolicy is Always: the container is launched again after each exit, and each launch costs money. Set "
    "restartPolicy to Never, or to OnFailure, to run it until it succeeds."
)


def warning(restart_policy: str, *, has_controller: bool, is_server: bool) -> str:
    """Return a sentence for a pod that looks like a single run, or an empty string.

    Always is the default of a pod. Servers want it, and controllers such as a Deployment need it.
    """
    return "" if has_controller or is_server or restart_policy != "Always" else _MESSAGE
