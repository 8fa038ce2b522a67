from __future__ import annotations

import socket
from ipaddress import ip_network

import pytest

from skysail.local.errors import Misused
from skysail.local.network.egress_policy import EgressPolicy, is_of_this_machine, parse_networks

GUARD = EgressPolicy(is_host_address=lambda address: str(address) == "9.9.9.9")
LOOPBACK, CREDENTIALS, NOBODY = "loopback", "credentials", "not the address of one machine"
INSIDE, MACHINE, PRIVATE = "NO_PROXY", "this machine itself", "SKYSAIL_ALLOWED_NETWORKS"


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1", LOOPBACK),
        ("127.255.255.254", LOOPBACK),
        ("0.0.0.0", LOOPBACK),
        ("::", LOOPBACK),
        ("::1", LOOPBACK),
        ("0:0:0:0:0:0:0:1", LOOPBACK),
        ("::ffff:127.0.0.1", LOOPBACK),
        ("::ffff:7f00:1", LOOPBACK),
        ("::ffff:0.0.0.0", LOOPBACK),
        ("::127.0.0.1", LOOPBACK),
        ("64:ff9b::7f00:1", LOOPBACK),
        ("2002:7f00:1::", LOOPBACK),
        ("169.254.169.254", CREDENTIALS),
        ("::ffff:169.254.169.254", CREDENTIALS),
        ("64:ff9b::a9fe:a9fe", CREDENTIALS),
        ("fe80::1", CREDENTIALS),
        ("fe80::1%eth0", CREDENTIALS),
        ("fd00:ec2::254", CREDENTIALS),
        ("100.100.100.200", CREDENTIALS),
        ("168.63.129.16", CREDENTIALS),
        ("64:ff9b::a83f:8110", CREDENTIALS),
        ("224.0.0.1", NOBODY),
        ("ff02::1", NOBODY),
        ("255.255.255.255", NOBODY),
        ("10.244.0.1", INSIDE),
        ("10.244.77.3", INSIDE),
        ("10.96.0.1", INSIDE),
        ("::ffff:10.96.0.1", INSIDE),
        ("9.9.9.9", MACHINE),
        ("::ffff:9.9.9.9", MACHINE),
        ("10.245.0.1", PRIVATE),
        ("10.95.255.255", PRIVATE),
        ("192.168.1.7", PRIVATE),
        ("::ffff:192.168.1.7", PRIVATE),
        ("172.16.0.1", PRIVATE),
        ("172.31.255.255", PRIVATE),
        ("100.64.0.1", PRIVATE),
        ("fd12:3456::1", PRIVATE),
        ("64:ff9b:1::7f00:1", PRIVATE),
        ("0.1.2.3", LOOPBACK),
        ("192.0.0.192", CREDENTIALS),
        ("fd20:ce::254", CREDENTIALS),
        ("64:ff9b::9.9.9.9", MACHINE),
        ("2002:909:909::1", MACHINE),
        # Teredo: the server, and the client with all its bits turned over.
        ("2001::1", PRIVATE),
        ("2001:0:808:808:0:0:5601:5601", CREDENTIALS),
        ("2001:0:7f00:1:0:0:f7f7:f7f7", LOOPBACK),
        ("2001:0:808:808:0:0:f7f7:f7f7", PRIVATE),
        ("2001:0:ffff:ffff:ffff:ffff:ffff:ffff", LOOPBACK),
        # ISATAP, below any prefix.
        ("2606:4700::5efe:10.0.0.1", PRIVATE),
        ("2606:4700::200:5efe:169.254.169.254", CREDENTIALS),
        ("2606:4700::5efe:127.0.0.1", LOOPBACK),
        ("2002:c0a8:107::1", PRIVATE),
        ("64:ff9b::192.168.1.7", PRIVATE),
        ("64:ff9b:1:ffff::8.8.8.8", PRIVATE),
        ("::ffff:0:10.0.0.1", PRIVATE),
        ("::8.8.8.8", PRIVATE),
        # Benchmarks, protocols, and ranges that are not assigned.
        ("198.18.0.1", PRIVATE),
        ("198.19.255.255", PRIVATE),
        ("2001:2::1", PRIVATE),
        ("2001:10::1", PRIVATE),
        ("192.0.0.8", PRIVATE),
        ("192.88.99.1", PRIVATE),
        ("240.0.0.1", PRIVATE),
        ("fec0::1", PRIVATE),
        ("100::1", PRIVATE),
        ("5f00::1", PRIVATE),
        ("4000::1", PRIVATE),
    ],
)
def test_what_is_closed_to_pods(address, why):
    assert why in (GUARD.address_deny_reason(address) or "")


@pytest.mark.parametrize(
    "address",
    [
        # Documentation ranges: some networks serve public names there.
        "192.0.2.1",
        "198.51.100.7",
        "203.0.113.10",
        "::ffff:203.0.113.10",
        "2001:db8::1",
        "3fff::1",
        "8.8.8.8",
        "172.32.0.1",
        "172.15.255.255",
        "100.128.0.1",
        "11.0.0.1",
        "192.0.1.1",
        "198.17.255.255",
        "198.20.0.1",
        "203.0.114.1",
        "223.255.255.255",
        "2606:4700::1111",
        "2001:200::1",
        "2001:db9::1",
        "::ffff:8.8.8.8",
        "64:ff9b::8.8.8.8",
        "2002:808:808::1",
        "2606:4700::5efe:8.8.8.8",
    ],
)
def test_what_is_open(address):
    assert GUARD.address_deny_reason(address) is None


def test_a_user_may_open_what_is_closed():
    policy = EgressPolicy(is_host_address=lambda _: True, exceptions=(ip_network("127.0.0.5/32"),))
    assert policy.address_deny_reason("127.0.0.5") is None
    assert policy.address_deny_reason("::ffff:127.0.0.5") is None
    assert policy.address_deny_reason("127.0.0.6") is not None


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("10.7.0.8", None),
        ("10.7.0.9", MACHINE),
        ("10.244.77.3", INSIDE),
        ("10.96.0.1", INSIDE),
        ("127.0.0.1", LOOPBACK),
        ("169.254.169.254", CREDENTIALS),
        ("10.96.0.2", None),
    ],
)
def test_egress_policy_allowed_network_excludes_machine_and_cluster(address, why):
    opened = map(ip_network, ("10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "10.96.0.2"))
    policy = EgressPolicy(is_host_address=lambda address: str(address) == "10.7.0.9", exceptions=tuple(opened))
    objection = policy.address_deny_reason(address)
    assert (objection is None) == (why is None)
    assert (why or "") in (objection or "")


def test_a_server_that_the_user_named_is_open_wherever_it_is():
    policy = EgressPolicy(servers=frozenset({("packages.example.test", 8080)}))
    inside = ["192.168.1.7", "127.0.0.1"]
    assert policy.deny_reason("packages.example.test", 8080, inside) is None
    assert "private" in policy.deny_reason("packages.example.test", 80, inside)
    assert "private" in policy.deny_reason("other.example.test", 8080, inside)


def test_networks_are_read_and_what_is_none_is_told():
    assert parse_networks("") == ()
    assert parse_networks("192.168.1.0/24, fd00::/8,10.0.0.1") == tuple(
        map(ip_network, ("192.168.1.0/24", "fd00::/8", "10.0.0.1/32"))
    )
    with pytest.raises(Misused, match="SKYSAIL_ALLOWED_NETWORKS"):
        parse_networks("192.168.1.7/24")


@pytest.mark.parametrize(
    "spelling", ["localhost", "127.1", "0x7f000001", "2130706433", "017700000001", "0177.0.0.1", "0", "127.0.0.1"]
)
def test_every_spelling_that_the_system_takes_for_loopback_is_closed(spelling):
    found = {where[0] for *_, where in socket.getaddrinfo(spelling, 80, type=socket.SOCK_STREAM)}
    assert all(GUARD.address_deny_reason(address) for address in found)


def test_the_machine_knows_its_own_addresses():
    from ipaddress import ip_address

    assert is_of_this_machine(ip_address("127.0.0.1"))
    assert not is_of_this_machine(ip_address("203.0.113.9"))
