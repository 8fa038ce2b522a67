"""How the API server says no: Status objects, in its words, because people and code read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skysail.kube.api.resources import Resource


class Refusal(Exception):
    """A request that is answered with an error. `status` is the body."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.status = failure(code, reason, message, **details)


def failure(code: int, reason: str, message: str, **details: Any) -> dict[str, Any]:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return {**status, "message": message, "reason": reason, "details": details, "code": code}


def success(resource: Resource, name: str, uid: str) -> dict[str, Any]:
    details = _about(resource, name) | {"uid": uid}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def created() -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def not_found(resource: Resource, name: str) -> Refusal:
    message = f'{resource.crd_name} "{name}" not found'
    return Refusal(404, "NotFound", message, **_about(resource, name))


def already_exists(resource: Resource, name: str) -> Refusal:
    message = f'{resource.crd_name} "{name}" already exists'
    return Refusal(409, "AlreadyExists", message, **_about(resource, name))


def modified(resource: Resource, name: str) -> Refusal:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(resource, name, why)


def precondition_failed(resource: Resource, name: str, field: str, wanted: str, found: str) -> Refusal:
    why = f"the {field} in the precondition ({wanted}) does not match the {field} in record ({found})"
    return conflict(resource, name, why)


def conflict(resource: Resource, name: str, why: str, what: str = "") -> Refusal:
    message = f'Operation cannot be fulfilled on {what or resource.crd_name} "{name}": {why}'
    return Refusal(409, "Conflict", message, **_about(resource, name))


def apply_conflict(owners: list[tuple[str, str]]) -> Refusal:
    causes = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{manager}"', "field": field}
        for manager, field in owners
    ]
    fields = ", ".join(f'"{manager}": {field}' for manager, field in owners)
    noun = "conflict" if len(owners) == 1 else "conflicts"
    return Refusal(409, "Conflict", f"Apply failed with {len(owners)} {noun}: conflict with {fields}", causes=causes)


def namespace_terminating(resource: Resource, name: str, namespace: str) -> Refusal:
    why = f"unable to create new content in namespace {namespace} because it is being terminated"
    message = f'{resource.crd_name} "{name}" is forbidden: {why}'
    cause = {
        "reason": "NamespaceTerminating",
        "message": f"namespace {namespace} is being terminated",
        "field": "metadata.namespace",
    }
    return Refusal(403, "Forbidden", message, **_about(resource, name), causes=[cause])


def invalid(resource: Resource, name: str, field: str, why: str) -> Refusal:
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    causes = [{"reason": "FieldValueInvalid", "message": why, "field": field}]
    about = {**_about(resource, name), "kind": resource.kind}
    return Refusal(422, "Invalid", f'{kind} "{name}" is invalid: {field}: {why}', **about, causes=causes)


def bad_request(message: str) -> Refusal:
    return Refusal(400, "BadRequest", message)


def expired(message: str) -> Refusal:
    return Refusal(410, "Expired", message)


def not_allowed() -> Refusal:
    return Refusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def _about(resource: Resource, name: str) -> dict[str, Any]:
    group = {"group": resource.group} if resource.group else {}
    return {"name": name, **group, "kind": resource.plural}
