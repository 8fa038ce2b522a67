"""Reasons why the target revision of an endpoint or function does not serve. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from skysail.base.names import Reason
from skysail.cloud import provider
from skysail.core import pod_pending
from skysail.kinds.modal_endpoints.objects import Pod
from skysail.kinds.modal_endpoints.snapshot import Snapshot
from skysail.kube.api.workloads import Terminated, oldest_first

# Exit code of the handler server if the handler cannot be imported.
HANDLER_NOT_FOUND = 78
# Exit code of a program that was not started, so that it has no log.
_NOT_STARTED = 128
# Exit codes of shells and container runtimes for a program that does not exist or cannot be executed.
_NOT_EXECUTABLE = {126, 127}
_START_ERRORS = {"StartError", "ContainerCannotRun"}
# Reasons for which a cloud rejects an App, with ours.
_REJECTED = {
    "ErrImagePull": Reason.IMAGE_PULL_FAILED,
    "NameConflict": Reason.NAME_CONFLICT,
}
# Reason for which a cloud rejects an App whose import failed, and may succeed at the next attempt.
_IMPORT_FAILED = "ImportFailed"
# Errors of the handler server for a module that exists and raises while it is imported.
_IMPORT_ERROR = re.compile(r"cannot be imported: (?P<error>\w+)")
_NO_FUNCTION = "has no function"
_MISSING_MODULE = {"ModuleNotFoundError", "ImportError"}
_SYNTAX_ERRORS = {"SyntaxError", "IndentationError", "TabError"}
# Reasons that a retry does not heal: the user has to change something.
_FATAL = {
    Reason.HANDLER_NOT_FOUND,
    Reason.IMAGE_WITHOUT_PYTHON,
    Reason.CONFIG_MISSING,
    Reason.CRASH_LOOP,
    Reason.IMAGE_PULL_FAILED,
    Reason.NAME_CONFLICT,
    Reason.PODS_REJECTED,
    Reason.QUOTA_EXCEEDED,
}


class Problem(msgspec.Struct, frozen=True):
    """Reason and sentence. `is_fatal`: nothing heals it but a change by the user."""

    reason: str
    message: str

    @property
    def is_fatal(self) -> bool:
        return self.reason in _FATAL


def find(snapshot: Snapshot) -> Problem | None:
    """Return why the target revision does not serve, or None if no reason is known (yet)."""
    desired = snapshot.desired
    if desired is None:
        return Problem(Reason.CONFIG_MISSING, snapshot.code_problem)
    pods = [pod for pod in oldest_first(snapshot.pods) if pod.revision == desired.revision]
    found = (_of_pod(pod, desired.image, is_own_server=desired.is_own_server) for pod in pods)
    problem = next((each for each in found if each is not None), None)
    if problem is not None:
        return problem
    error = snapshot.deployment.creation_error if snapshot.deployment else ""
    if error:
        rejected = pod_pending.creation_rejected(error)
        return Problem(rejected.reason, rejected.message)
    return None


def is_final(pod: Pod) -> bool:
    """Return whether nothing is launched for the pod again, because its App has no such handler."""
    return any(end is not None and end.reason == provider.HANDLER_NOT_FOUND for end in _ends(pod))


def _ends(pod: Pod) -> Iterator[Terminated | None]:
    return (container.state.terminated or container.last_state.terminated for container in pod.containers)


def _of_pod(pod: Pod, image: str, *, is_own_server: bool) -> Problem | None:
    end = next((each for each in _ends(pod) if each is not None and each.exit_code != 0 and not each.is_lost), None)
    is_ready = any(container.ready for container in pod.containers)
    if end is not None and not is_ready:
        return _of_end(end, pod.metadata.name, image, is_own_server=is_own_server)
    refusal = pod.offload_refusal
    if refusal is not None and not pod.spec.node_name:
        return Problem(refusal.reason, refusal.message)
    if any(each.state.waiting and each.state.waiting.reason == Reason.REPLY_LOST for each in pod.containers):
        return None  # the next inventories show whether the launch succeeded
    pending = pod_pending.pending_reason(pod, f"Pod {pod.metadata.name}")
    return Problem(pending.reason, pending.message) if pending is not None else None


def _of_rejection(reason: str, message: str, pod: str) -> Problem | None:
    """Return the problem of an App that the cloud rejects, or None if that is not the reason."""
    if reason == provider.HANDLER_NOT_FOUND:
        retry = f"To try again without a change, delete pod {pod}."
        return Problem(Reason.HANDLER_NOT_FOUND, f"{message} {_handler_fix(message)} {retry}")
    if reason == _IMPORT_FAILED:
        return Problem(Reason.HANDLER_NOT_FOUND, f"{message} The import is tried again.")
    return Problem(_REJECTED[reason], message) if reason in _REJECTED else None


def _of_end(end: Terminated, pod: str, image: str, *, is_own_server: bool) -> Problem:
    message = pod_pending.truncate(end.message) if end.message else ""
    rejected = _of_rejection(end.reason, message, pod)
    if rejected is not None:
        return rejected
    if end.reason in pod_pending.NAMED:
        return Problem(end.reason, f"Pod {pod} does not run: {message}")
    if end.exit_code == HANDLER_NOT_FOUND and not is_own_server:
        return Problem(Reason.HANDLER_NOT_FOUND, f"{message} {_handler_fix(message)}")
    is_missing = end.exit_code in _NOT_EXECUTABLE or end.reason in _START_ERRORS
    if is_missing and not is_own_server:
        return Problem(
            Reason.IMAGE_WITHOUT_PYTHON,
            f"Image {image} cannot run `python`, which handlers need: use an image with Python. {message}".rstrip(),
        )
    detail = f" {message}" if message else ""
    if end.exit_code == _NOT_STARTED:
        return Problem(Reason.CRASH_LOOP, f"The server could not start ({end.reason}).{detail}")
    return Problem(
        Reason.CRASH_LOOP, f"The server ended with exit code {end.exit_code} ({end.reason}).{detail} See its log."
    )


def _handler_fix(message: str) -> str:
    if _NO_FUNCTION in message:
        return "Add the function to the code, or correct spec.handler."
    match = _IMPORT_ERROR.search(message)
    error = match["error"] if match else ""
    if error in _SYNTAX_ERRORS:
        return "Correct the syntax error in the code."
    if error and error not in _MISSING_MODULE:
        return "Correct the code, so that the module can be imported."
    return "Set spec.code, or use an image that has the module."
