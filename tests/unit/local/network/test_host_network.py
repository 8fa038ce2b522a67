"""The setting for `hostNetwork`, and the provider that enforces it."""

from __future__ import annotations

import pytest

from skysail.cloud.errors import Rejected
from skysail.cloud.provider import Pod
from skysail.local.errors import Misused
from skysail.local.network import host_network
from tests.conformance.local import local_provider


@pytest.mark.parametrize(
    ("value", "is_allowed"), [(None, False), ("", False), ("0", False), ("false", False), ("true", True), ("1", True)]
)
def test_nothing_but_true_allows_it(value, is_allowed):
    env = {} if value is None else {host_network.SETTING: value}
    assert host_network.is_allowed(env) is is_allowed


@pytest.mark.parametrize("value", ["yes please", "*", "default", "tru", " true"])
def test_another_value_is_told(value):
    with pytest.raises(Misused, match=host_network.SETTING):
        host_network.is_allowed({host_network.SETTING: value})


async def test_the_provider_refuses_a_pod_on_the_host_network(tmp_path):
    async with local_provider(tmp_path) as provider:
        assert not provider.features.host_network
        pod = Pod(uid="u", namespace="default", name="p", hostname="p", uses_host_network=True)
        with pytest.raises(Rejected, match=host_network.SETTING):
            await provider.create_sandbox(pod)
        assert (await provider.list()).pods == {}
