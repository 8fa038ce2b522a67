"""Discovery of the kinds that the cluster serves, by watching CustomResourceDefinitions.

Optional kinds (of Kueue, Volcano, Kubeflow) can be installed or removed at any time. Listeners learn of both.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from skysail.kube.api.objects import Key, Object
from skysail.kube.api.rbac import watch_rule
from skysail.kube.api.resources import CRD, Resource
from skysail.kube.cache.cache import Cache

POLICY_RULES = (watch_rule(CRD),)


class _Version(msgspec.Struct, frozen=True, gc=False):
    name: str
    served: bool = False


class _Names(msgspec.Struct, frozen=True, gc=False):
    plural: str


class _Spec(msgspec.Struct, frozen=True, gc=False):
    group: str
    names: _Names
    versions: tuple[_Version, ...] = ()


class _Condition(msgspec.Struct, frozen=True, gc=False):
    type: str
    status: str


class _Status(msgspec.Struct, frozen=True, gc=False):
    conditions: tuple[_Condition, ...] | None = None


class CrdInfo(Object, frozen=True, gc=False):
    """A CustomResourceDefinition, reduced to the kinds and versions that it serves."""

    spec: _Spec
    status: _Status = _Status()

    @property
    def is_established(self) -> bool:
        return any(
            condition.type == "Established" and condition.status == "True" for condition in self.status.conditions or ()
        )

    def serves(self, resource: Resource) -> bool:
        return (
            self.is_established
            and not self.metadata.is_deleting
            and (self.spec.group, self.spec.names.plural) == (resource.group, resource.plural)
            and any(version.name == resource.version and version.served for version in self.spec.versions)
        )


Listener = Callable[[bool], None]
Wanted = Callable[[CrdInfo], bool]


class Discovery:
    """Served kinds, based on a cache of CustomResourceDefinitions."""

    def __init__(self) -> None:
        self.cache = Cache(CRD, CrdInfo)
        self._listeners: dict[str, list[tuple[Resource, Listener, Wanted]]] = {}
        self.cache.subscribe(self._changed)

    def follow(self, resource: Resource, listener: Listener, selection: Wanted = lambda _: True) -> None:
        """Call the listener with True when the resource becomes served, and with False when it is removed.

        The listener is called at once if the resource is already served. `selection` filters definitions.
        """
        self._listeners.setdefault(resource.crd_name, []).append((resource, listener, selection))
        crd_info = self.cache.get(Key("", resource.crd_name))
        if crd_info and crd_info.serves(resource) and selection(crd_info):
            listener(True)

    def serves(self, resource: Resource) -> bool | None:
        """Return whether the resource is served, or None until the definitions are listed."""
        if not self.cache.synced.is_set():
            return None
        crd_info = self.cache.get(Key("", resource.crd_name))
        return crd_info is not None and crd_info.serves(resource)

    def _changed(self, old: CrdInfo | None, new: CrdInfo | None) -> None:
        present = new or old
        assert present is not None, "old or new is set"
        for resource, listener, desired in self._listeners.get(present.metadata.name, ()):
            was, is_ = (state is not None and state.serves(resource) and desired(state) for state in (old, new))
            if was != is_:
                listener(is_)
