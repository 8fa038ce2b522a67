"""Objects of a shared cloud account that a pod names, such as a template. Policies have to allow them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from skysail.claims.requirements.types import RUNPOD

# Options of a pod that name an object of the account, and the kind of that object.
_KINDS = {
    "template-id": "template",
    "network-volume-id": "network-volume",
    "container-registry-auth-id": "registry",
}


def named(provider: str, options: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the objects that the options name, such as `runpod/template/abc`.

    An account belongs to the whole cluster, so without a check the pods of one namespace could use, and read, what
    another one stores there.
    """
    if provider != RUNPOD:
        return ()
    return tuple(sorted(f"{RUNPOD}/{_KINDS[name]}/{value}" for name, value in options if name in _KINDS))
