"""Errors of the local cluster, by what the user can do.

LocalError
├── Misused              the request is invalid: change it
├── MachineUnfit         the machine lacks something that the local cluster needs: the message says how to get it
│   └── NamespacesForbidden  the machine forbids namespaces: the message lists the ways to allow them
├── BuildFailed          the control plane or an environment could not be built: the message has the cause and the fix
│   └── VersionUnavailable   the package index has no version that was asked for
├── StartFailed          a part of the local cluster did not start: the message has the end of its log
├── NotRunning           no local cluster runs in this home: `skysail up` starts one
└── Refused              the local cluster rejected the request
"""

from __future__ import annotations

from skysail.base.errors import UserError


class LocalError(UserError):
    """Base class of all errors of the local cluster."""


class Misused(LocalError): ...


class MachineUnfit(LocalError): ...


class NamespacesForbidden(MachineUnfit): ...


class BuildFailed(LocalError):
    exit_code = 1


class VersionUnavailable(BuildFailed):
    """The package index has no version that was asked for."""


class StartFailed(LocalError):
    exit_code = 1


class NotRunning(LocalError): ...


class Refused(LocalError): ...
