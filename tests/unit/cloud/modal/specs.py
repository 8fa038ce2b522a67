"""Launch specs for tests of Modal."""

from __future__ import annotations

from typing import Any

from skysail.cloud.account import LaunchSpec, Member
from skysail.cloud.provider import Container, Pod

CLUSTER = "0b7e5a70-1111-4222-8333-444455556666"


def launch_spec(
    *, container: dict[str, Any] | None = None, pod: dict[str, Any] | None = None, **fields: Any
) -> LaunchSpec:
    member = Member(
        Pod(**{"uid": "u", "namespace": "default", "name": "pod", "hostname": "pod", **(pod or {})}),
        Container(**{"name": "main", "image": "busybox:1.36", "command": ("sh", "-c", "true"), **(container or {})}),
    )
    return LaunchSpec(**{"claim": "claim-1", "cluster": CLUSTER, "members": (member,), "max_lifetime": 600.0, **fields})
