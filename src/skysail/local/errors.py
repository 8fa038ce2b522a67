"""What can go wrong with a cluster on this machine, sorted by what the user can do about it.

LocalError
├── Misused              the wish itself cannot be: ask for something else
├── MachineUnfit         the machine lacks something that a hull needs: the message says how to get it
│   └── NamespacesForbidden  it does not allow a hull: the ways out are in the message
├── BuildFailed          the control plane could not be built: the message says what failed and what to do
├── StartFailed          something inside did not come up: the message ends with the end of its log
├── NotRunning           there is no hull in this home: `skysail up` starts one
└── Refused              the hull is there and said no
"""

from __future__ import annotations

from skysail.base.errors import UserError


class LocalError(UserError):
    """Root of this tree."""


class Misused(LocalError): ...


class MachineUnfit(LocalError): ...


class NamespacesForbidden(MachineUnfit): ...


class BuildFailed(LocalError):
    exit_code = 1


class StartFailed(LocalError):
    exit_code = 1


class NotRunning(LocalError): ...


class Refused(LocalError): ...
