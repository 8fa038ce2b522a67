"""A network namespace and an address for each pod."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from ipaddress import IPv4Address, IPv4Network
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import msgspec

from skysail.cloud.errors import NoCapacity, OutcomeUnknown
from skysail.cloud.provider import Pod
from skysail.local.addresses import BRIDGE, CLUSTER_IP, POD_RANGE
from skysail.local.network import interfaces, netns
from skysail.local.network.dns_zone import OwnPod
from skysail.local.network.neighbours import Neighbours
from skysail.local.network.task_set import TaskSet

T = TypeVar("T")


class Attachment(msgspec.Struct, frozen=True):
    """Where a pod is. `namespace` is a name for `ip netns`, and empty for the hull's own network."""

    namespace: str
    address: str


class IpPool:
    """Gives out addresses in turn, not the lowest free one: a name server's answer or a link may outlive its pod."""

    def __init__(
        self, range_: str = POD_RANGE, reserved: tuple[str, ...] = (CLUSTER_IP, interfaces.SERVICES_ADDRESS)
    ) -> None:
        self._range = IPv4Network(range_)
        self._used = {IPv4Address(address) for address in reserved}
        self._next = 0

    def allocate(self) -> str:
        hosts = self._range.num_addresses - 2
        for _ in range(hosts):
            address = self._range[1 + self._next]
            self._next = (self._next + 1) % hosts
            if address not in self._used:
                self._used.add(address)
                return str(address)
        raise NoCapacity(f"All {hosts} addresses of {self._range} are in use: delete some pods.")

    def release(self, address: str) -> None:
        self._used.discard(IPv4Address(address))


class PodNetwork:
    """All methods belong to one event loop; the slow work is done beside it. Raises errors of `cloud.errors`."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._changed = changed
        self._ip_pool = IpPool()
        self._neighbours = Neighbours()
        self._places: dict[str, tuple[Pod, Attachment]] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._task_set = TaskSet()
        self._is_open = asyncio.Event()

    @property
    def own_pods(self) -> list[OwnPod]:
        """Names that are known here before anybody wrote them to the API server, in the order of their making."""
        return [
            OwnPod(pod.namespace, pod.hostname, pod.subdomain, place.address)
            for pod, place in self._places.values()
            if pod.subdomain
        ]

    def namespace_of(self, address: str) -> str:
        """The Kubernetes namespace of the pod at this address; `default` for anybody else in the hull."""
        return next((pod.namespace for pod, place in self._places.values() if place.address == address), "default")

    async def open(self) -> None:
        """Sweep what an earlier process left behind, with everything that runs in it, and make the place for pods."""
        await asyncio.to_thread(self._prepare)
        self._is_open.set()

    async def close(self) -> None:
        """End what still runs in any pod's network, and take all of them away."""
        self._is_open.clear()
        await self._task_set.finish()
        self._neighbours.close()
        await asyncio.to_thread(interfaces.sweep)
        self._places.clear()
        self._ip_pool = IpPool()

    async def attach(self, pod: Pod) -> Attachment:
        """Give the pod its network. Called again for the same UID: the same place, nothing new. Waits for `open`."""
        if pod.uses_host_network:
            return Attachment("", CLUSTER_IP)
        await self._is_open.wait()
        return await self._to_its_end(self._attach(pod))

    async def detach(self, uid: str) -> None:
        """Take its network away. What still runs in it keeps it alive until it ends. Unknown pods are fine."""
        await self._to_its_end(self._detach(uid))

    async def dial(self, address: str, port: int) -> socket.socket:
        """A socket connected to a port of the pod, also where its server listens on the pod's loopback only.

        Raises OSError where nobody listens.
        """
        namespace = next((place.namespace for _, place in self._places.values() if place.address == address), None)
        if namespace is None:
            return await _connected(socket.socket(), address, port)
        try:
            return await _connected(await asyncio.to_thread(netns.make_socket, namespace), "127.0.0.1", port)
        except ConnectionRefusedError:
            return await _connected(socket.socket(), address, port)

    async def _attach(self, pod: Pod) -> Attachment:
        async with self._lock(pod.uid):
            if pod.uid in self._places:
                return self._places[pod.uid][1]
            address = self._ip_pool.allocate()
            place = Attachment(_namespace(address), address)
            try:
                await asyncio.to_thread(self._connect, place)
            except BaseException:
                self._ip_pool.release(address)
                raise
            self._places[pod.uid] = (pod, place)
            self._changed()
            return place

    async def _detach(self, uid: str) -> None:
        async with self._lock(uid):
            if uid not in self._places:
                return
            _, place = self._places[uid]
            await asyncio.to_thread(self._disconnect, place)
            del self._places[uid]
            self._ip_pool.release(place.address)
            self._changed()

    def _prepare(self) -> None:
        interfaces.prepare()
        self._neighbours.close()
        self._neighbours.add(CLUSTER_IP, BRIDGE)
        services = interfaces.SERVICES
        self._neighbours.add(interfaces.SERVICES_ADDRESS, "eth0", services, port=interfaces.port(services))

    def _connect(self, place: Attachment) -> None:
        """Give the pod its link. Where a step fails, nothing of it stays."""
        interfaces.add(place.namespace, place.address)
        try:
            self._neighbours.add(place.address, "eth0", place.namespace, port=interfaces.port(place.namespace))
        except OutcomeUnknown:
            interfaces.remove(place.namespace)
            raise

    def _disconnect(self, place: Attachment) -> None:
        self._neighbours.remove(place.address)
        interfaces.remove(place.namespace)

    def _lock(self, uid: str) -> asyncio.Lock:
        return self._locks.setdefault(uid, asyncio.Lock())

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """A caller who stops waiting does not leave half of a network behind."""
        return await asyncio.shield(self._task_set.start(work))


def _namespace(address: str) -> str:
    third, fourth = address.split(".")[2:]
    return f"pod-{third}-{fourth}"


async def _connected(connection: socket.socket, host: str, port: int) -> socket.socket:
    connection.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(connection, (host, port))
    except BaseException:
        connection.close()
        raise
    return connection
