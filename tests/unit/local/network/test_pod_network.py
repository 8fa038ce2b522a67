from __future__ import annotations

import pytest

from skysail.cloud.errors import NoCapacity
from skysail.local.network.pod_network import IpPool


def test_an_address_that_is_given_back_is_not_the_next_one():
    ip_pool = IpPool()
    first = ip_pool.allocate()
    ip_pool.release(first)
    assert (first, ip_pool.allocate()) == ("10.244.0.2", "10.244.0.3")


def test_every_address_is_given_once_and_then_there_is_none():
    ip_pool = IpPool("10.0.0.0/29", ("10.0.0.1", "10.0.0.6"))
    taken = [ip_pool.allocate() for _ in range(4)]
    assert taken == ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"]
    with pytest.raises(NoCapacity, match="delete some pods"):
        ip_pool.allocate()
    ip_pool.release("10.0.0.4")
    assert ip_pool.allocate() == "10.0.0.4"
