"""Patch of a Deployment, ReplicaSet or StatefulSet. Pure.

Annotations of these objects are not on their pods, so those that ask for a cloud are copied into the pod template.
A changed template replaces running pods. So the copy is made only when the object is created or its template changes
anyway; after another change a warning says how the annotations reach the pods.
"""

from __future__ import annotations

from collections.abc import Iterator

from skysail.kinds.offload.admission import template_annotations
from skysail.kube.admission.hooks import AdmissionResponse, Manifest

_TEMPLATE = "/spec/template"


def admit(server: Manifest, old: Manifest | None) -> AdmissionResponse:
    """Return the patch of a server and its warnings. One with a controller is not touched: it would be changed back."""
    if _has_controller(server):
        return AdmissionResponse()
    template, previous = _template(server), None if old is None else _template(old)
    missing = template_annotations.missing(template, [server])
    is_safe = previous is None or previous != template or server.get("kind") == "ReplicaSet"
    return AdmissionResponse(
        patch=tuple(template_annotations.patch(template, missing, _TEMPLATE)) if is_safe else (),
        warnings=() if old is None else tuple(_warnings(server, old, {} if is_safe else missing)),
    )


def _warnings(server: Manifest, old: Manifest, waiting: dict[str, str]) -> Iterator[str]:
    """Yield what a change of the server's annotations does not do. `waiting`: annotations that are not copied yet."""
    new, before = template_annotations.inheritable(server), template_annotations.inheritable(old)
    if new == before:
        return
    kind, name = str(server.get("kind") or ""), str(template_annotations.metadata(server).get("name") or "")
    if waiting:
        yield (
            f"Running pods of {kind} {name} are not replaced for {', '.join(sorted(waiting))}: to move them, run"
            f" `kubectl rollout restart {kind.lower()}/{name}`."
        )
    own = template_annotations.of(_template(server))
    changed = {key for key in {*new, *before} if new.get(key) != before.get(key)}
    stale = sorted(key for key in changed if key in own and own[key] != new.get(key))
    if stale:
        yield (
            f"The pod template of {kind} {name} has {', '.join(f'{key}: {own[key]}' for key in stale)}, which wins:"
            " change spec.template.metadata.annotations, too."
        )


def _template(server: Manifest) -> Manifest:
    found: Manifest = (server.get("spec") or {}).get("template") or {}
    return found


def _has_controller(server: Manifest) -> bool:
    references = template_annotations.metadata(server).get("ownerReferences") or ()
    return any(reference.get("controller") for reference in references)
