"""Network namespaces and addresses of pods."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
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
    """Network of one pod. `namespace` is a name for `ip netns`, empty for the network of the local cluster."""

    namespace: str
    address: str


class IpPool:
    """Allocates addresses in turn, not the lowest free one: a DNS answer or a link may outlive its pod."""

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
    """Network of all pods. Raises errors of `cloud.errors`.

    All methods must be called in one event loop; blocking work runs in threads.
    """

    def __init__(
        self, changed: Callable[[], None] = lambda: None, admit: Callable[[str, str], Awaitable[None]] | None = None
    ) -> None:
        """`admit` gets UID and namespace of each attached pod, and returns when its network policies are in force."""
        self._changed = changed
        self._admit = admit
        self._ip_pool = IpPool()
        self._neighbours = Neighbours()
        self._attachments: dict[str, tuple[Pod, Attachment]] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._task_set = TaskSet()
        self._is_open = asyncio.Event()

    @property
    def own_pods(self) -> list[OwnPod]:
        """Return the pods of this node, which may not be in the API server yet, in the order of their creation."""
        return [
            OwnPod(pod.namespace, pod.hostname, pod.subdomain, attachment.address)
            for pod, attachment in self._attachments.values()
            if pod.subdomain
        ]

    @property
    def addresses(self) -> dict[str, str]:
        """Return the addresses of the pods of this node by UID. The API server learns them later."""
        return {uid: attachment.address for uid, (_, attachment) in self._attachments.items()}

    def namespace_of(self, address: str) -> str:
        """Return the Kubernetes namespace of the pod at this address; `default` for other addresses."""
        return next(
            (pod.namespace for pod, attachment in self._attachments.values() if attachment.address == address),
            "default",
        )

    async def open(self) -> None:
        """Kill the processes and remove the namespaces of an earlier process, and prepare the network."""
        await asyncio.to_thread(self._prepare)
        self._is_open.set()

    async def close(self) -> None:
        """Kill all processes in pod networks, and remove the networks."""
        self._is_open.clear()
        await self._task_set.finish()
        self._neighbours.close()
        await asyncio.to_thread(interfaces.sweep)
        self._attachments.clear()
        self._ip_pool = IpPool()

    async def attach(self, pod: Pod, *, has_policies: bool = True) -> Attachment:
        """Create the network of a pod. Idempotent: returns the same attachment for the same UID. Waits for `open`.

        `has_policies`: whether it is a pod of the API server, whose network policies must be in force first.
        """
        if pod.uses_host_network:
            return Attachment("", CLUSTER_IP)
        await self._is_open.wait()
        return await self._to_completion(self._attach(pod, has_policies=has_policies))

    async def detach(self, uid: str) -> None:
        """Remove the network of a pod. It exists until its last process ends. Does nothing for unknown pods."""
        await self._to_completion(self._detach(uid))

    async def dial(self, address: str, port: int) -> socket.socket:
        """Return a socket that is connected to a port of the pod, even if its server listens on loopback only.

        Raises OSError if no server listens.
        """
        namespace = next(
            (attachment.namespace for _, attachment in self._attachments.values() if attachment.address == address),
            None,
        )
        if namespace is None:
            return await _connected(socket.socket(), address, port)
        try:
            return await _connected(await asyncio.to_thread(netns.make_socket, namespace), "127.0.0.1", port)
        except ConnectionRefusedError:
            return await _connected(socket.socket(), address, port)

    async def _attach(self, pod: Pod, *, has_policies: bool) -> Attachment:
        async with self._lock(pod.uid):
            if pod.uid not in self._attachments:
                await self._add(pod)
            # Each time: the attempt before may have failed here.
            if self._admit is not None and has_policies:
                await self._admit(pod.uid, pod.namespace)
            return self._attachments[pod.uid][1]

    async def _add(self, pod: Pod) -> None:
        address = self._ip_pool.allocate()
        attachment = Attachment(interfaces.pod_namespace(address), address)
        try:
            await asyncio.to_thread(self._connect, attachment)
        except BaseException:
            self._ip_pool.release(address)
            raise
        self._attachments[pod.uid] = (pod, attachment)
        self._changed()

    async def _detach(self, uid: str) -> None:
        async with self._lock(uid):
            if uid not in self._attachments:
                return
            _, attachment = self._attachments[uid]
            await asyncio.to_thread(self._disconnect, attachment)
            del self._attachments[uid]
            self._ip_pool.release(attachment.address)
            self._changed()

    def _prepare(self) -> None:
        interfaces.prepare()
        self._neighbours.close()
        self._neighbours.add(CLUSTER_IP, BRIDGE)
        services = interfaces.SERVICES
        self._neighbours.add(interfaces.SERVICES_ADDRESS, "eth0", services, port=interfaces.port(services))

    def _connect(self, attachment: Attachment) -> None:
        """Create the pod's link. If a step fails, all of it is undone."""
        interfaces.add(attachment.namespace, attachment.address)
        try:
            self._neighbours.add(
                attachment.address, "eth0", attachment.namespace, port=interfaces.port(attachment.namespace)
            )
        except OutcomeUnknown:
            interfaces.remove(attachment.namespace)
            raise

    def _disconnect(self, attachment: Attachment) -> None:
        self._neighbours.remove(attachment.address)
        interfaces.remove(attachment.namespace)

    def _lock(self, uid: str) -> asyncio.Lock:
        return self._locks.setdefault(uid, asyncio.Lock())

    async def _to_completion(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to completion, even if the caller is cancelled: no partial network is left."""
        return await asyncio.shield(self._task_set.start(work))


class InstanceNetwork:
    """The network of all pods, for instances of simulated clouds. The API server has no pods with their UIDs."""

    def __init__(self, pods: PodNetwork) -> None:
        self._pods = pods

    async def attach(self, pod: Pod) -> Attachment:
        return await self._pods.attach(pod, has_policies=False)

    async def detach(self, uid: str) -> None:
        await self._pods.detach(uid)

    async def dial(self, address: str, port: int) -> socket.socket:
        return await self._pods.dial(address, port)


async def _connected(connection: socket.socket, host: str, port: int) -> socket.socket:
    connection.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(connection, (host, port))
    except BaseException:
        connection.close()
        raise
    return connection
