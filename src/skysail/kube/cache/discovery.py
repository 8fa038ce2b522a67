"""Which kinds the cluster serves, now: found by watching CustomResourceDefinitions.

A kind that may be absent (Kueue's, Volcano's, Kubeflow's) can be installed or removed at any time; whoever cares is
told when it appears and when it goes.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from skysail.kube.api.objects import Key, Object
from skysail.kube.api.rbac import reading
from skysail.kube.api.resources import CRD, Resource
from skysail.kube.cache.cache import Cache

RIGHTS = (reading(CRD),)


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


class Definition(Object, frozen=True, gc=False):
    """A CustomResourceDefinition, as far as it tells what is served."""

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
Wanted = Callable[[Definition], bool]


class Discovery:
    """A view of the cache of definitions."""

    def __init__(self) -> None:
        self.cache = Cache(CRD, Definition)
        self._listeners: dict[str, list[tuple[Resource, Listener, Wanted]]] = {}
        self.cache.subscribe(self._changed)

    def follow(self, resource: Resource, listener: Listener, wanted: Wanted = lambda _: True) -> None:
        """Be told True when a wanted definition begins to serve the resource and False when it ends to.

        Told at once if it is served already.
        """
        self._listeners.setdefault(resource.crd_name, []).append((resource, listener, wanted))
        definition = self.cache.get(Key("", resource.crd_name))
        if definition and definition.serves(resource) and wanted(definition):
            listener(True)

    def serves(self, resource: Resource) -> bool | None:
        """None while the definitions have not been listed."""
        if not self.cache.synced.is_set():
            return None
        definition = self.cache.get(Key("", resource.crd_name))
        return definition is not None and definition.serves(resource)

    def _changed(self, old: Definition | None, new: Definition | None) -> None:
        present = new or old
        assert present is not None, "a change has a before or an after"
        for resource, listener, wanted in self._listeners.get(present.metadata.name, ()):
            was, is_ = (state is not None and state.serves(resource) and wanted(state) for state in (old, new))
            if was != is_:
                listener(is_)
