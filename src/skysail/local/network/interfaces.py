"""Network namespaces and links of pods. The only network code that runs `ip`. Blocking: not for the event loop.

A pod is a network namespace whose `eth0` is connected to the bridge of the local cluster. ClusterIPs are in a namespace
of their own, in which every address of the Service range is local. So a server of the local cluster that listens on all
addresses does not conflict with a Service on the same port.
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
    """Remove the leftovers of an earlier process, and create the namespace of the ClusterIPs. Idempotent."""
    sweep()
    # With forwarding, an outside address is answered "unreachable" at once. Otherwise connections hang for minutes.
    with suppress(OSError):  # some containers do not allow it, and a hanging connection is acceptable there
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    with suppress(OSError):  # for pods with hostNetwork
        netns.allow_unprivileged()
    # Otherwise a bridge takes the lowest address of its ports, and each new or deleted pod would make the ARP tables of
    # all others wrong.
    _run(f"link set {BRIDGE} address {hardware_address(CLUSTER_IP)}")
    _add(SERVICES, SERVICES_ADDRESS, f"route add local {SERVICE_RANGE} dev lo")
    _run(f"route replace {SERVICE_RANGE} via {SERVICES_ADDRESS}")


def add(namespace: str, address: str) -> None:
    """Create the network namespace of a pod. If a step fails, all of it is undone."""
    routes = f"route add {SERVICE_RANGE} via {SERVICES_ADDRESS}\nroute add default via {CLUSTER_IP}"
    try:
        _add(namespace, address, routes)
    except OutcomeUnknown:
        with suppress(OutcomeUnknown):
            remove(namespace)
        raise
    with suppress(OSError):  # some containers do not allow it
        netns.allow_low_ports(namespace)


def pod_namespace(address: str) -> str:
    """Return the name of the network namespace of the pod at this address."""
    third, fourth = address.split(".")[2:]
    return f"pod-{third}-{fourth}"


def port(namespace: str) -> str:
    """Return the name of the bridge's end of a pod's link."""
    return _LINK + namespace


def remove(namespace: str) -> None:
    """Delete the namespace. The kernel removes the links later, so names and addresses must not be reused at once."""
    if (netns.FOLDER / namespace).exists():
        _run(f"netns del {namespace}")


def sweep() -> None:
    """Kill the processes in all pod namespaces, and remove all namespaces and links."""
    for namespace in _namespaces():
        for pid in _ip("netns", "pids", namespace).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        remove(namespace)
    links = [line.split()[0].partition("@")[0] for line in _ip("-brief", "link").splitlines()]
    for link in links:
        if link.startswith(_LINK):
            # The kernel may remove the link at the same time, which is fine.
            with suppress(OutcomeUnknown):
                _run(f"link del {link}")


def _namespaces() -> list[str]:
    return sorted(entry.name for entry in netns.FOLDER.iterdir()) if netns.FOLDER.is_dir() else []


def _add(namespace: str, address: str, routes: str) -> None:
    link = port(namespace)
    # The bridge learns no hardware addresses from pods, and delivers no packets of other pods to them.
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
        raise OutcomeUnknown(f"The pod network could not be changed: ip printed {done.stderr.strip()!r}.")
    return done.stdout
