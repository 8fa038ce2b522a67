"""Reasons why the target revision of an endpoint or function does not serve. Pure."""

from __future__ import annotations

import re

import msgspec

from skysail.base.names import Reason
from skysail.core import pod_pending
from skysail.kinds.modal_endpoints.objects import Pod
from skysail.kinds.modal_endpoints.snapshot import Snapshot
from skysail.kube.api.workloads import Terminated, oldest_first

# Exit code of the handler server if the handler cannot be imported.
HANDLER_NOT_FOUND = 78
# Exit codes of shells and container runtimes for a program that does not exist or cannot be executed.
_NOT_EXECUTABLE = {126, 127, 128}
_START_ERRORS = {"StartError", "ContainerCannotRun"}
# Reasons for which a cloud rejects an App, with ours.
_REJECTED = {
    "HandlerNotFound": Reason.HANDLER_NOT_FOUND,
    "ErrImagePull": Reason.IMAGE_PULL_FAILED,
    "NameConflict": Reason.NAME_CONFLICT,
}
# Errors of the handler server for a module that exists and raises while it is imported.
_IMPORT_ERROR = re.compile(r"cannot be imported: (?P<error>\w+)")
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


def _of_pod(pod: Pod, image: str, *, is_own_server: bool) -> Problem | None:
    ends = (container.state.terminated or container.last_state.terminated for container in pod.containers)
    end = next((each for each in ends if each is not None and each.exit_code != 0 and not each.is_lost), None)
    is_ready = any(container.ready for container in pod.containers)
    if end is not None and not is_ready:
        return _of_end(end, image, is_own_server=is_own_server)
    refusal = pod.offload_refusal
    if refusal is not None and not pod.spec.node_name:
        return Problem(refusal.reason, refusal.message)
    if any(each.state.waiting and each.state.waiting.reason == Reason.REPLY_LOST for each in pod.containers):
        return None  # the next inventories show whether the launch succeeded
    pending = pod_pending.pending_reason(pod, f"Pod {pod.metadata.name}")
    return Problem(pending.reason, pending.message) if pending is not None else None


def _of_end(end: Terminated, image: str, *, is_own_server: bool) -> Problem:
    message = pod_pending.truncate(end.message) if end.message else ""
    rejected = _REJECTED.get(end.reason)
    if rejected is not None and rejected is not Reason.HANDLER_NOT_FOUND:
        return Problem(rejected, message)
    if (rejected is not None or end.exit_code == HANDLER_NOT_FOUND) and not is_own_server:
        return Problem(Reason.HANDLER_NOT_FOUND, f"{message} {_handler_fix(message)}")
    is_missing = end.exit_code in _NOT_EXECUTABLE or end.reason in _START_ERRORS
    if is_missing and not is_own_server:
        return Problem(
            Reason.IMAGE_WITHOUT_PYTHON,
            f"Image {image} cannot run `python`, which handlers need: use an image with Python. {message}".rstrip(),
        )
    detail = f" {message}" if message else ""
    return Problem(
        Reason.CRASH_LOOP, f"The server ended with exit code {end.exit_code} ({end.reason}).{detail} See its log."
    )


def _handler_fix(message: str) -> str:
    match = _IMPORT_ERROR.search(message)
    error = match["error"] if match else ""
    if error in _SYNTAX_ERRORS:
        return "Correct the syntax error in the code."
    if error and error not in _MISSING_MODULE:
        return "Correct the code, so that the module can be imported."
    return "Set spec.code, or use an image that has the module."
