"""An account on virtual time, and launch specs for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from skysail.cloud.account import LaunchSpec, Member
from skysail.cloud.provider import Container, Pod
from skysail.cloud.simulated.account import SimulatedAccount
from skysail.cloud.simulated.ledger import Ledger
from skysail.cloud.simulated.options import VARIABLE
from skysail.cloud.simulated.vendors import Machine, Vendor

if TYPE_CHECKING:
    from typing import Any

    from skysail.cloud.simulated.faults import Fault

PLAIN = Vendor(
    name="plain",
    private_network=True,
    usd_per_hour=3.6,
    start=2.0,
    run=10.0,
    machines=(Machine("A", 16, 7.2), Machine("B", 80, 36.0)),
)


def now() -> float:
    return asyncio.get_running_loop().time()


def account(*faults: Fault, vendor: Vendor = PLAIN, ledger: Ledger | None = None) -> SimulatedAccount:
    return SimulatedAccount(vendor, Ledger() if ledger is None else ledger, now=now, script=faults)


def launch_spec(simulate: str = "", *, claim: str = "claim", uid: str = "uid", **wishes: Any) -> LaunchSpec:
    given = {"cluster": "ours", "max_lifetime": 600.0, **wishes}
    pod = Pod(uid=uid, namespace="default", name="pod", hostname="pod")
    container = Container(name="main", image="busybox", env=((VARIABLE, simulate),))
    return LaunchSpec(claim=claim, members=(Member(pod, container),), **given)


def told(account: SimulatedAccount) -> list[tuple[float, str]]:
    """When what happened."""
    return [(row.at, row.verb) for row in account.ledger.rows]
