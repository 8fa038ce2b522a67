"""Placement knows the size of a machine before a node has the pod: it must be the size that the claim is priced by."""

from __future__ import annotations

import msgspec
import pytest

from skysail.claims.requirements.annotations import parse
from skysail.claims.requirements.machine_size import machine_size
from skysail.claims.requirements.types import PodSpecView
from skysail.cloud.provider import ResourceLimits
from skysail.node.config import cloud_pod
from skysail.node.pod_types import Pod
from skysail.node.sync import cloud_requirements

MODE = {"modal-operator.io/use-modal": "true"}
SIDECAR = {"name": "istio-proxy", "resources": {"limits": {"cpu": "9", "memory": "9Gi"}}}


def main(**resources) -> dict:
    return {"name": "main", "resources": resources}


@pytest.mark.parametrize(
    ("containers", "annotations", "want"),
    [
        ([main()], {}, ResourceLimits()),
        ([main(limits={"cpu": "500m", "memory": "1Gi"})], {}, ResourceLimits(cpu=0.5, memory=2**30)),
        ([main(requests={"cpu": 2})], {}, ResourceLimits(cpu=2.0)),
        ([main(limits={"cpu": "4"}, requests={"cpu": "1", "memory": "64Mi"})], {}, ResourceLimits(cpu=4, memory=2**26)),
        ([SIDECAR, main(limits={"cpu": "1"})], {}, ResourceLimits(cpu=1.0)),
        ([main(limits={"cpu": "1", "memory": "1Gi"})], {**MODE, "modal-operator.io/cpu": "3"}, None),
        ([main()], {**MODE, "modal-operator.io/memory": "2Gi"}, None),
    ],
)
def test_machine_size_is_the_one_of_the_claim(containers, annotations, want):
    spec = msgspec.convert({"containers": containers}, PodSpecView)
    found = machine_size(spec, parse(annotations, {}, spec).overrides)
    metadata = {"name": "p", "namespace": "n", "uid": "u", "annotations": annotations}
    images = [{"image": "busybox", **container} for container in containers]
    pod = msgspec.convert({"metadata": metadata, "spec": {"containers": images}}, Pod)
    claimed = cloud_requirements.requirements(cloud_pod.effective(pod, "modal")).size
    assert (found.cpu, found.memory) == (claimed.cpu, claimed.memory)
    if want is not None:
        assert found == want


def test_malformed_amounts_count_as_absent():
    spec = msgspec.convert({"containers": [main(limits={"cpu": "many", "memory": "x"})]}, PodSpecView)
    assert machine_size(spec, None) == ResourceLimits()
