"""Who is chosen by a selector, and what is told before anything is known."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import TestClient, TestServer

from skysail.cloud.provider import Usage
from skysail.node.metrics_api import BadSelector, MetricsApi, registration, selects
from skysail.node.usage_sampler import UsageSampler
from tests.unit.node.test_usage_sampler import OLD, Measured


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        ("", True),
        ("app=web", True),
        ("app==web,tier=a", True),
        ("app!=web", False),
        ("app=other", False),
        ("none!=x", True),
        ("app", True),
        ("!app", False),
        ("!none", True),
        ("app in (web, api),tier notin (b)", True),
        ("app in (api)", False),
        ("example.com/x=1", False),
    ],
)
def test_a_label_selector_chooses(selector, chosen):
    assert selects(selector, {"app": "web", "tier": "a"}) == chosen


@pytest.mark.parametrize("selector", ["=", "app in web", "a=b c", "(x)"])
def test_what_is_no_selector_is_refused(selector):
    with pytest.raises(BadSelector):
        selects(selector, {"app": "web", "a": "b"})


def test_the_registration_names_its_version():
    made = registration("Y2E=", service=("kube-system", "m"), port=1)
    assert made["metadata"]["name"] == "v1beta1.metrics.k8s.io"


async def test_a_node_that_was_just_started_says_nothing_rather_than_zero():
    provider = Measured()
    usage_sampler = UsageSampler(provider, lambda: provider.now)
    async with TestClient(TestServer(MetricsApi("n", None, usage_sampler).application())) as client:
        nodes = "/apis/metrics.k8s.io/v1beta1/nodes"
        for seconds in (1.0, 3.0):
            assert (await (await client.get(nodes)).json())["items"] == []
            assert (await client.get(f"{nodes}/n")).status == 404
            provider.used, provider.now = {OLD: Usage(cpu_seconds=seconds, memory=2048)}, seconds
            await usage_sampler._sample()
        found = await (await client.get(f"{nodes}/n")).json()
        assert (found["usage"], found["window"]) == ({"cpu": "1000000000n", "memory": "2Ki"}, "2s")
