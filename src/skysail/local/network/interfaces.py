"""The kernel's side of the pod network. The only code of the network that runs `ip`. Blocking: not for the event loop.

A pod is a network namespace whose `eth0` hangs on the hull's bridge. ClusterIPs live in a namespace of their own: there
every address of the Service range is local, and no server of the hull that listens on all its addresses is in the way
of a Service with the same port.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from skysail.cloud.errors import OutcomeUnknown
from skysail.local.addresses import BRIDGE, CLUSTER_IP, SERVICE_RANGE
from skysail.local.network import netns
from skysail.local.network.neighbours import hardware_address

SERVICES = "services"
SERVICES_ADDRESS = "10.244.255.254"
_LINK = "sky-"


def prepare() -> None:
    """Sweep what an earlier process left behind, then make the place of the ClusterIPs. May be called again."""
    sweep()
    # With forwarding, an address outside of the hull is answered "unreachable" instead of with silence for minutes.
    with suppress(OSError):  # some containers do not allow it, and silence is the lesser evil
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    with suppress(OSError):  # for pods with hostNetwork
        netns.allow_unprivileged()
    # Else a bridge takes the lowest address of its ports, and a pod that comes or goes makes all others' ARP tables
    # wrong.
    _run(f"link set {BRIDGE} address {hardware_address(CLUSTER_IP)}")
    _add(SERVICES, SERVICES_ADDRESS, f"route add local {SERVICE_RANGE} dev lo")
    _run(f"route replace {SERVICE_RANGE} via {SERVICES_ADDRESS}")


def add(namespace: str, address: str) -> None:
    """A namespace for a pod. Where a step fails, nothing of it stays."""
    routes = f"route add {SERVICE_RANGE} via {SERVICES_ADDRESS}\nroute add default via {CLUSTER_IP}"
    try:
        _add(namespace, address, routes)
    except OutcomeUnknown:
        with suppress(OutcomeUnknown):
            remove(namespace)
        raise
    with suppress(OSError):  # as above: some containers do not allow it
        netns.allow_low_ports(namespace)


def port(namespace: str) -> str:
    """Return the name of the bridge's end of a pod's link."""
    return _LINK + namespace


def remove(namespace: str) -> None:
    """The kernel takes the links away a little later, so names and addresses must not be given out again at once."""
    if (netns.FOLDER / namespace).exists():
        _run(f"netns del {namespace}")


def sweep() -> None:
    """End what runs in any pod's namespace, and remove all namespaces and links."""
    for namespace in _namespaces():
        for pid in _ip("netns", "pids", namespace).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        remove(namespace)
    links = [line.split()[0].partition("@")[0] for line in _ip("-brief", "link").splitlines()]
    for link in links:
        if link.startswith(_LINK):
            # The kernel may take it away in this moment: it is the wish itself that it is gone.
            with suppress(OutcomeUnknown):
                _run(f"link del {link}")


def _namespaces() -> list[str]:
    return sorted(entry.name for entry in netns.FOLDER.iterdir()) if netns.FOLDER.is_dir() else []


def _add(namespace: str, address: str, routes: str) -> None:
    link = port(namespace)
    # The bridge learns from no pod where a hardware address is, and shows a pod nothing that is for another one.
    _run(f"""
        netns add {namespace}
        link add {link} type veth peer name eth0 netns {namespace}
        link set {link} master {BRIDGE} up
        link set {link} type bridge_slave learning off flood off
    """)
    _run(
        f"""
        link set lo up
        link set eth0 address {hardware_address(address)}
        addr add {address}/16 dev eth0
        link set eth0 up
        {routes}
        """,
        "-netns",
        namespace,
    )


def _run(steps: str, *options: str) -> None:
    _ip(*options, "-batch", "-", steps=steps)


def _ip(*arguments: str, steps: str = "") -> str:
    program = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise OutcomeUnknown("The program `ip` is missing: install the package iproute2.")
    done = subprocess.run([program, *arguments], input=steps, text=True, check=False, capture_output=True)  # noqa: S603 (ours)
    if done.returncode != 0:
        raise OutcomeUnknown(f"The pod network could not be changed: ip said {done.stderr.strip()!r}.")
    return done.stdout
