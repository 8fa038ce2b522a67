from __future__ import annotations

import socket
from ipaddress import ip_network

import pytest

from skysail.local.net.guard import Guard, is_of_this_machine

GUARD = Guard(is_machines=lambda address: str(address) == "203.0.113.9")
LOOPBACK, CREDENTIALS, NOBODY = "loopback", "credentials", "no single machine"
INSIDE, MACHINE = "NO_PROXY", "this machine itself"


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
        ("224.0.0.1", NOBODY),
        ("ff02::1", NOBODY),
        ("255.255.255.255", NOBODY),
        ("10.244.0.1", INSIDE),
        ("10.244.77.3", INSIDE),
        ("10.96.0.1", INSIDE),
        ("::ffff:10.96.0.1", INSIDE),
        ("203.0.113.9", MACHINE),
        ("::ffff:203.0.113.9", MACHINE),
    ],
)
def test_what_is_closed_to_pods(address, why):
    assert why in (GUARD.objection(address) or "")


@pytest.mark.parametrize(
    "address",
    ["203.0.113.10", "10.245.0.1", "10.95.255.255", "192.168.1.7", "2001:db8::1", "::ffff:203.0.113.10"],
)
def test_what_is_open(address):
    assert GUARD.objection(address) is None


def test_a_user_may_open_what_is_closed():
    guard = Guard(is_machines=lambda _: True, exceptions=(ip_network("127.0.0.5/32"),))
    assert guard.objection("127.0.0.5") is None
    assert guard.objection("::ffff:127.0.0.5") is None
    assert guard.objection("127.0.0.6") is not None


@pytest.mark.parametrize(
    "spelling", ["localhost", "127.1", "0x7f000001", "2130706433", "017700000001", "0177.0.0.1", "0", "127.0.0.1"]
)
def test_every_spelling_that_the_system_takes_for_loopback_is_closed(spelling):
    found = {where[0] for *_, where in socket.getaddrinfo(spelling, 80, type=socket.SOCK_STREAM)}
    assert all(GUARD.objection(address) for address in found)


def test_the_machine_knows_its_own_addresses():
    from ipaddress import ip_address

    assert is_of_this_machine(ip_address("127.0.0.1"))
    assert not is_of_this_machine(ip_address("203.0.113.9"))
