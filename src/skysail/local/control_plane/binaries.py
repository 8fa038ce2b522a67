"""Find the programs of the control plane: those that the user names, else the binary that we build."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from skysail.local.control_plane import build
from skysail.local.control_plane.flags import Component
from skysail.local.errors import Misused

_REQUIRED = (Component.ETCD, Component.API_SERVER, Component.KUBECTL)


class Binaries(msgspec.Struct, frozen=True):
    """First words of each component's command line. `note` is a sentence for the user, or empty."""

    commands: Mapping[Component, tuple[str, ...]]
    note: str = ""


def locate(deps: build.BuildDependencies) -> Binaries:
    """Return the programs in SKYSAIL_KUBE_BIN, else in KUBEBUILDER_ASSETS, else our own, which is built if missing.

    Raises Misused if a required program is missing in the named folder, and BuildFailed.
    """
    for variable in ("SKYSAIL_KUBE_BIN", "KUBEBUILDER_ASSETS"):
        if named := deps.env.get(variable):
            return _named(variable, Path(named).absolute())
    return _all_in_one(build.ensure(deps))


def _named(variable: str, path: Path) -> Binaries:
    if path.is_file():
        return _all_in_one(path)
    found = {component: (str(path / component),) for component in Component if (path / component).is_file()}
    missing = [component for component in _REQUIRED if component not in found]
    if missing:
        raise Misused(
            f"{variable} is {path}, but {', '.join(missing)} was not found there: name another folder, or unset it."
        )
    absent = [component for component in Component if component not in found]
    note = f"{variable} has no {' and no '.join(absent)}: the cluster runs without their functions." if absent else ""
    return Binaries(found, note)


def _all_in_one(binary: Path) -> Binaries:
    return Binaries({component: (str(binary), component.value) for component in Component})
