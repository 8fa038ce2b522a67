from __future__ import annotations

import os

from skysail.local.bubblewrap import seccomp_filter
from skysail.local.bubblewrap.cgroups import CgroupManager
from skysail.local.bubblewrap.host_tools import HostTools
from skysail.local.bubblewrap.id_ranges import IdRanges
from skysail.local.bubblewrap.isolation import Isolation
from skysail.local.provider import pod_limits

TOOLS = HostTools.find(os.environ["PATH"])


def test_a_node_that_enforces_all_says_so(tmp_path):
    cgroups = CgroupManager({"memory": tmp_path}, "ours")
    cgroups.are_bounded = True
    assert pod_limits.unenforced(cgroups, Isolation(TOOLS, ranges=IdRanges())) == []
    ((status, reason, _),) = pod_limits.condition([]).values()
    assert (status, reason) == ("True", "AllLimitsEnforced")


def test_a_node_names_each_limit_that_it_does_not_enforce(monkeypatch):
    monkeypatch.setattr(seccomp_filter, "program", lambda: None)
    monkeypatch.setattr(Isolation, "limits_processes", False)
    missing = pod_limits.unenforced(CgroupManager({}, "ours"), Isolation(TOOLS))
    ((status, reason, message),) = pod_limits.condition(missing).values()
    assert (status, reason) == ("False", "SomeLimitsIgnored")
    assert message == (
        "The node does not enforce limits of memory and CPU, the limit of memory and processes for all pods together, "
        "the limit of processes, user ids of its own for each pod, the seccomp filter: "
        "start Skysail as root of the machine."
    )


def test_pods_that_share_their_ids_are_named():
    cgroups = CgroupManager({}, "ours")
    shared = Isolation(TOOLS, ranges=IdRanges(), shares_ids=True)
    assert "user ids of its own for each pod" in pod_limits.unenforced(cgroups, shared)
