"""The pod network in a local cluster: real namespaces, the real API server, real resolvers."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import uuid
from contextlib import contextmanager
from http.client import HTTPConnection
from ipaddress import ip_network
from pathlib import Path

import msgspec
import pytest

from skysail.cloud.provider import Pod
from skysail.local.addresses import CLUSTER_IP
from skysail.local.cluster.supervisor import Unit
from skysail.local.control_plane import credentials
from skysail.local.errors import Refused
from skysail.local.network import dns_forwarder, dns_wire, dns_zone, egress_proxy, host_side
from skysail.local.network.egress_policy import EgressPolicy
from skysail.local.network.pod_network import Attachment
from tests.e2e.test_local_cluster import BECOME_NOBODY, NOBODY, TIMEOUT_SECONDS, namespace_script
from tests.support import arp, network
from tests.support.network import Footprint

ANSWER = """
import socket, sys
word, port, host = sys.argv[1].encode(), int(sys.argv[2]), sys.argv[3]
with socket.create_server((host, port), backlog=64) as server:
    print("listens", flush=True)
    while True:
        line, _ = server.accept()
        with line:
            line.sendall(word)
"""
ASK = """
import socket, sys
host, port = sys.argv[1], int(sys.argv[2])
with socket.create_connection((host, port), timeout=600) as line:
    print(line.makefile().read())
"""
SERVE_HTTP = """
import http.server

class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello from inside")

server = http.server.HTTPServer(("", 8000), Hello)
print("listens", flush=True)
server.serve_forever()
"""
LOOK_UP = """
import socket, sys
try:
    print(*sorted({where[0] for *_, where in socket.getaddrinfo(sys.argv[1], None)}))
except socket.gaierror as error:
    print(error.strerror)
"""


class PodProcess:
    """A pod with a network of its own, and without a node: the test runs programs in it."""

    def __init__(self, net: Net, pod: Pod, place: Attachment) -> None:
        self._net = net
        self.pod = pod
        self.address = place.address
        self.namespace = place.namespace
        self.units: list[str] = []

    def start(self, script: str, *arguments: str) -> str:
        """The name of the unit that runs this Python in the pod, with the resolver that a pod has."""
        self._net.count += 1
        unit = f"pod-{self._net.count}"
        resolver = self._net.cluster.home.root / f"resolv-{self.pod.namespace}"
        resolver.write_text(dns_zone.resolv_conf(self.pod.namespace))
        shell = f'mount --bind {resolver} /etc/resolv.conf && exec {sys.executable} -c "$0" "$@"'
        argv = ("ip", "netns", "exec", self.namespace, "sh", "-c", shell, script, *arguments)
        self._net.cluster.control.start_unit(Unit(name=unit, argv=argv, restart=False))
        self.units.append(unit)
        return unit

    def run(self, script: str, *arguments: str) -> str:
        """What it printed, when it has ended."""
        return self._net.output_of(self.start(script, *arguments))

    def answer(self, word: str, port: int = 8000, host: str = "") -> str:
        """Start a server that says this word to everybody. Returns its unit."""
        return self.serve(ANSWER, word, str(port), host)

    def serve(self, script: str, *arguments: str) -> str:
        """Start a server that says when it listens. Returns its unit."""
        unit = self.start(script, *arguments)
        self._net.cluster.until(lambda: "listens" in self._net.cluster.log(unit), f"{unit} to listen")
        return unit


class Net:
    def __init__(self, cluster) -> None:
        self.cluster = cluster
        self.count = 0

    def post(self, path: str, body: bytes) -> bytes:
        connection = HTTPConnection(CLUSTER_IP)
        connection.sock = self.cluster.dial(network.PORT)
        try:
            connection.request("POST", path, body)
            reply = connection.getresponse()
            said = reply.read()
        finally:
            connection.close()
        assert reply.status == 200, said
        return said

    def attach(self, name: str, subdomain: str = "", **fields) -> PodProcess:
        pod = Pod(uid=str(uuid.uuid4()), namespace="default", name=name, hostname=name, subdomain=subdomain, **fields)
        return PodProcess(
            self, pod, msgspec.json.decode(self.post("/attach", msgspec.json.encode(pod)), type=Attachment)
        )

    def detach(self, pod: PodProcess) -> None:
        self.post("/detach", pod.pod.uid.encode())

    @contextmanager
    def pod(self, name: str, subdomain: str = ""):
        pod = self.attach(name, subdomain)
        yield pod
        for unit in pod.units:
            self.cluster.stop(unit)
        self.detach(pod)

    def look(self) -> Footprint:
        return msgspec.json.decode(self.cluster.get("/look", network.PORT)[1], type=Footprint)

    def output_of(self, unit: str) -> str:
        self.cluster.until(lambda: self.cluster.unit(unit).state == "stopped", f"{unit} to end")
        return self.cluster.log(unit).strip()

    def apply(self, *objects) -> None:
        """Returns when the network has seen them."""
        for manifest in objects:
            done = self.cluster.kubectl("apply", "-o", "json", "-f", "-", stdin=json.dumps(manifest))
            assert done.returncode == 0, done.stderr
            made = json.loads(done.stdout)
            uid, version = made["metadata"]["uid"], int(made["metadata"]["resourceVersion"])
            self.cluster.until(lambda uid=uid, version=version: self.seen().get(uid, 0) >= version, "the watch to tell")
            for place in self._served_by(made):
                self.cluster.until(lambda place=place: self.answers(*place), f"somebody to listen at {place}")

    def _served_by(self, made: dict) -> list[tuple[int, str]]:
        """Where somebody listens because of these endpoints."""
        name = made["metadata"].get("labels", {}).get("kubernetes.io/service-name")
        if not name or not made.get("endpoints"):
            return []
        done = self.cluster.kubectl("get", "service", name, "-n", made["metadata"]["namespace"], "-o", "json")
        spec = json.loads(done.stdout)["spec"] if done.returncode == 0 else {}
        named = {port["name"] for port in made["ports"]}
        ports = spec.get("ports", ()) if spec.get("clusterIP", "None") != "None" else ()
        return [(port["port"], spec["clusterIP"]) for port in ports if port.get("name", "") in named]

    def seen(self) -> dict[str, int]:
        return json.loads(self.cluster.get("/seen", network.PORT)[1])

    def answers(self, port: int, host: str) -> bool:
        try:
            self.cluster.dial(port, host).close()
        except Refused:
            return False
        return True


@pytest.fixture(scope="module")
def net(cluster):
    login = credentials.inside_path(cluster.home, "admin")
    argv = (sys.executable, "-m", "tests.support.network", str(login))
    env = {"PYTHONPATH": str(Path(__file__).parents[2])}
    cluster.control.start_unit(Unit(name="network", argv=argv, env=env, restart=False))
    cluster.until(lambda: cluster._is_ready("network", network.PORT), "the network to be ready")
    yield Net(cluster)
    cluster.stop("network")


def service(name, *, ports=(("", 80, 8000),), **spec):
    listed = [{"name": label, "port": port, "targetPort": target} for label, port, target in ports]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"ports": listed, **spec},
    }


def endpoints(name, *pods, ports=(("", 8000),), hostnames=False):
    """As the EndpointSlice controller writes them; there are no pods in this API server."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{name}-slice",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "ports": [{"name": label, "port": port, "protocol": "TCP"} for label, port in ports],
        "endpoints": [
            {
                "addresses": [pod.address],
                "conditions": {"ready": True},
                **({"hostname": pod.pod.hostname} if hostnames else {}),
            }
            for pod in pods
        ],
    }


def test_two_pods_reach_each_other_by_address_and_by_name(net):
    net.apply(service("pair", clusterIP="None", publishNotReadyAddresses=True))
    with net.pod("pair-0", "pair") as first, net.pod("pair-1", "pair") as second:
        first.answer("one")
        second.answer("two")
        assert first.address != second.address
        assert first.run(ASK, second.address, "8000") == "two"
        assert second.run(ASK, "pair-0.pair", "8000") == "one"
        assert second.run(ASK, "pair-0.pair.default.svc.cluster.local", "8000") == "one"
        assert second.run(LOOK_UP, "pair-1.pair") == second.address


def test_a_service_is_reached_by_every_spelling_of_its_name(net):
    net.apply(service("web", ports=(("http", 80, 8000), ("health", 8080, 8001))))
    with net.pod("server") as server, net.pod("client") as client:
        net.apply(endpoints("web", server, ports=(("http", 8000), ("health", 8001))))
        server.answer("http")
        server.answer("health", 8001)
        for spelling in ("web", "web.default", "web.default.svc", "web.default.svc.cluster.local"):
            assert client.run(ASK, spelling, "80") == "http"
        # The operator and others in the local cluster may listen on this port of all addresses.
        with net.cluster.listen(8080, "0.0.0.0"):
            assert client.run(ASK, "web", "8080") == "health"
        assert server.run(ASK, "web", "80") == "http"


def test_a_service_whose_port_somebody_in_the_cluster_has_on_all_addresses(net):
    with net.cluster.listen(8090, "0.0.0.0"), net.pod("server") as server:
        net.apply(service("late", ports=(("", 8090, 8000),)), endpoints("late", server))
        server.answer("late")
        assert server.run(ASK, "late", "8090") == "late"


def test_another_endpoint_answers_when_one_dies(net):
    net.apply(service("twins"))
    with net.pod("twin-0") as first, net.pod("twin-1") as second, net.pod("client") as client:
        net.apply(endpoints("twins", first, second))
        unit = first.answer("one")
        second.answer("two")
        assert {client.run(ASK, "twins", "80") for _ in range(2)} == {"one", "two"}
        net.cluster.stop(unit)
        assert {client.run(ASK, "twins", "80") for _ in range(3)} == {"two"}
        net.detach(first)
        assert {client.run(ASK, "twins", "80") for _ in range(2)} == {"two"}


def test_a_service_without_endpoints_refuses_and_an_unknown_one_does_not_exist(net):
    net.apply(service("empty"))
    with net.pod("client") as client:
        assert "ConnectionRefusedError" in client.run(ASK, "empty", "80")
        assert "ConnectionRefusedError" in client.run(ASK, "empty", "81")
        assert client.run(LOOK_UP, "nobody") == "Name or service not known"
        assert client.run(LOOK_UP, "example.com") == "Name or service not known"


def test_a_pod_that_comes_late_is_waited_for(net):
    net.apply(service("job", clusterIP="None", publishNotReadyAddresses=True))
    with net.pod("job-1", "job") as early:
        question = early.serve("print('listens', flush=True)" + LOOK_UP, "job-0.job")
        # The question is on its way, or it is held; in no case it may be answered before the name is there.
        with net.pod("job-0", "job") as late:
            assert net.output_of(question) == f"listens\n{late.address}"
        assert early.run(LOOK_UP, "job-2.job") == "Name or service not known"


def test_a_headless_service_names_its_ready_pods(net):
    net.apply(service("set", ports=(("http", 80, 8000),), clusterIP="None"))
    with net.pod("set-0", "set") as first, net.pod("set-1", "set") as second:
        net.apply(endpoints("set", first, second, ports=(("http", 8000),), hostnames=True))
        both = " ".join(sorted((first.address, second.address)))
        net.cluster.until(lambda: first.run(LOOK_UP, "set") == both, "both pods to be named")
        assert first.run(LOOK_UP, "set-1.set") == second.address


def test_the_api_server_answers_pods_by_its_name(net):
    get = """
import json, ssl, urllib.request
trusting = ssl.create_default_context(cafile=__import__("sys").argv[1])
print(json.load(urllib.request.urlopen("https://kubernetes.default.svc/version", context=trusting))["gitVersion"])
"""
    with net.pod("client") as client:
        assert re.match(r"v1\.\d+\.\d+", client.run(get, str(net.cluster.home.pki / "ca.crt")))


def test_pods_do_not_see_the_loopback_of_the_machine_or_of_the_cluster(net):
    with socket.create_server(("127.0.0.1", 0)) as outside, net.pod("client") as client:
        port = str(outside.getsockname()[1])
        with net.cluster.listen(int(port), "127.0.0.1"):
            assert "ConnectionRefusedError" in client.run(ASK, "127.0.0.1", port)
            assert "ConnectionRefusedError" in client.run(ASK, CLUSTER_IP, port)
        assert "Network is unreachable" in client.run(ASK, "192.0.2.1", port)


def test_a_program_without_rights_may_listen_on_a_low_port(net):
    with net.pod("server") as server, net.pod("client") as client:
        server.serve(
            f"import os, socket, encodings.idna\nos.setgid({NOBODY})\nos.setuid({NOBODY})" + ANSWER, "low", "80", ""
        )
        assert client.run(ASK, server.address, "80") == "low"


def test_coming_and_going_leaves_nothing_behind(net):
    def rounds(count: int) -> Footprint:
        for _ in range(count):
            net.detach(net.attach("brief"))
        net.cluster.until(lambda: not any("pod-" in link for link in net.look().links), "the kernel to remove links")
        return net.look()

    before = rounds(1)
    assert before.namespaces == ["services"]
    after = rounds(50)
    assert (after.namespaces, after.links) == (before.namespaces, before.links)
    # Connections of the network itself come and go.
    net.cluster.until(lambda: net.look().descriptors <= before.descriptors, "what was opened to be closed")


def test_asking_twice_gives_the_same_place_and_taking_away_twice_is_fine(net):
    pod = net.attach("twice")
    again = msgspec.json.decode(net.post("/attach", msgspec.json.encode(pod.pod)), type=Attachment)
    assert (again.namespace, again.address) == (pod.namespace, pod.address)
    net.detach(pod)
    net.detach(pod)
    assert net.attach("host", uses_host_network=True).address == CLUSTER_IP


@pytest.mark.parametrize("name", arp.attacks("10.244.9.9", "10.244.9.8"))
def test_no_pod_takes_over_the_address_of_another_one_by_arp(net, name):
    """Not even with the right to send any frame, which its user does not get."""
    with net.pod("victim") as victim, net.pod("client") as client, net.pod("attacker") as attacker:
        victim.answer("victim")
        assert client.run(ASK, victim.address, "8000") == "victim", "known to both before"
        frame = arp.attacks(victim.address, client.address)[name]
        unit = attacker.start(arp.ATTACK, victim.address, frame)
        net.cluster.until(lambda: "attacks" in net.cluster.log(unit), "the attack to begin")
        for _ in range(3):
            assert client.run(ASK, victim.address, "8000") == "victim"
            assert net.answers(8000, victim.address), "from the cluster's own network, too"
        assert "stolen" not in net.cluster.log(unit)


def test_an_address_that_was_claimed_before_its_pod_came_belongs_to_the_pod(net):
    with net.pod("client") as client, net.pod("attacker") as attacker:
        third, fourth = attacker.address.split(".")[2:]
        next_one = f"10.244.{third}.{int(fourth) + 1}"
        frames = arp.attacks(next_one, client.address).values()
        unit = attacker.start(arp.ATTACK, next_one, *frames)
        net.cluster.until(lambda: "attacks" in net.cluster.log(unit), "the attack to begin")
        with net.pod("victim") as victim:
            assert victim.address == next_one
            victim.answer("victim")
            before = net.cluster.log(unit).count("stolen")  # nobody had the address
            assert client.run(ASK, victim.address, "8000") == "victim"
            assert net.cluster.log(unit).count("stolen") == before


def test_a_new_start_sweeps_what_a_killed_one_left(net):
    left = net.attach("left")
    unit = left.answer("still here")
    net.cluster.signal("network", signal.SIGKILL)
    net.cluster.until(lambda: net.cluster.unit("network").state == "stopped", "the network to be gone")
    assert net.cluster.unit(unit).state == "running"
    net.cluster.resume("network")
    net.cluster.until(lambda: net.cluster._is_ready("network", network.PORT), "the network to be ready")
    net.cluster.until(lambda: net.cluster.unit(unit).state == "stopped", "what ran in the network to be ended")
    assert net.look().namespaces == ["services"]
    with net.pod("client") as client:
        assert client.run(LOOK_UP, "kubernetes.default") == "10.96.0.1"


GET = """
import sys, urllib.request, urllib.error
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=600).read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""


WITH_PROXY = "import os\n" + "".join(
    f"os.environ[{name!r}] = {value!r}\n" for name, value in egress_proxy.environment().items()
)


def test_a_program_that_asks_the_proxy_for_a_service_gets_it(net):
    net.apply(service("page"))
    with net.pod("server") as server:
        net.apply(endpoints("page", server))
        server.serve(SERVE_HTTP)
        for spelling in ("page", "page.default", "page.default.svc", server.address):
            port = 8000 if spelling == server.address else 80
            assert server.run(WITH_PROXY + GET, f"http://{spelling}:{port}/") == "hello from inside"
        nowhere = server.run(WITH_PROXY + GET, "http://nobody.example/")
        assert nowhere == "502 nobody.example:80 is not in the cluster, and this cluster has no egress proxy."


@pytest.mark.parametrize(
    ("guard", "wanted"),
    [
        (EgressPolicy(), "403 Pods may not connect to 127.1:"),
        (EgressPolicy(exceptions=(ip_network("127.0.0.1/32"),)), "hello from outside"),
    ],
    ids=["closed", "opened"],
)
async def test_the_way_out_leads_to_what_the_guard_lets_pass(net, guard, wanted):
    async def hello(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nhello from outside")
        writer.close()

    def in_a_pod(port: int) -> str:
        net.cluster.until(lambda: net.answers(egress_proxy.OUTER_PORT, CLUSTER_IP), "the way out to be open")
        with net.pod("client") as client:
            return client.run(WITH_PROXY + GET, f"http://127.1:{port}/")

    server = await asyncio.start_server(hello, "127.0.0.1", 0)
    way_out = asyncio.create_task(host_side.serve(net.cluster.control, (), guard))
    async with server:
        said = await asyncio.to_thread(in_a_pod, server.sockets[0].getsockname()[1])
    assert said.startswith(wanted)
    way_out.cancel()
    await asyncio.gather(way_out, return_exceptions=True)


async def test_names_of_the_outside_world_are_those_of_the_machine(net):
    class Machine:
        async def ask(self, message: bytes) -> bytes | None:
            question = dns_wire.read(message)
            if question.name != "skysail.example":
                return None
            found = [dns_wire.address(question.name, "203.0.113.7")] if question.wants(dns_wire.Type.A) else []
            return dns_wire.answer(question, dns_wire.Code.OK, found)

    def in_a_pod() -> list[str]:
        with net.pod("client") as client:
            return [client.run(LOOK_UP, name) for name in ("skysail.example", "other.example", "kubernetes.default")]

    forwarder_server = dns_forwarder.ForwarderServer(Machine())
    await forwarder_server.serve(await egress_proxy.make_listener(net.cluster.control, dns_forwarder.PORT))
    assert await asyncio.to_thread(in_a_pod) == ["203.0.113.7", "Name or service not known", "10.96.0.1"]
    await forwarder_server.close()


def test_a_service_is_opened_on_a_port_of_this_machine(net):
    net.apply(service("shop", ports=(("http", 80, 8000), ("other", 81, 8001))))
    with net.pod("server") as server, open_service(net.cluster, "shop:http") as port:
        net.apply(endpoints("shop", server, ports=(("http", 8000),)))
        server.answer("open")
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS) as line:
            assert line.makefile().read() == "open"


@contextmanager
def open_service(cluster, *arguments: str):
    """The port on which `skysail open` opens a Service."""
    command = [sys.executable, "-m", "skysail", "open", f"--home={cluster.home.root}", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        yield int(re.search(r"http://127.0.0.1:(\d+);", line)[1])
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_SECONDS) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("none",), "Service none not found in namespace default: `skysail kubectl get services -A` lists them."),
        (("kubernetes:ssh",), "Service kubernetes has no port ssh: open kubernetes:https."),
    ],
)
def test_what_cannot_be_opened_is_told_in_a_sentence(cluster, arguments, sentence):
    command = [sys.executable, "-m", "skysail", "open", f"--home={cluster.home.root}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, f"skysail: {sentence}\n")


def test_a_taken_port_is_told(cluster):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "skysail",
            "open",
            f"--home={cluster.home.root}",
            "kubernetes",
            f"--port={port}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"Port {port} of this machine is in use" in done.stderr


VISIT = """
import ctypes, os, signal, sys
from skysail.local.cluster import namespaces
from skysail.local.cluster import nsenter as visitor

def payload():
    signal.sigwait([signal.SIGTERM])
    return 0

{before}
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
entry = namespaces.fork_isolated(payload)
guest = os.fork()
if guest == 0:
    script = "ls /sys/class/net; id -u; cat /etc/resolv.conf; exit 37"
    os._exit(visitor.run_inside(os.getppid(), ["sh", "-c", script], dict(os.environ), resolv_conf="inside"))
code = os.waitstatus_to_exitcode(os.waitpid(guest, 0)[1])
os.kill(entry, signal.SIGTERM)
os.waitpid(entry, 0)
sys.exit(code)
"""


@pytest.mark.parametrize("before", ["", BECOME_NOBODY], ids=["as-we-are", "as-nobody"])
def test_a_visitor_enters_a_cluster_whoever_started_it(before):
    command = [sys.executable, "-c", VISIT.format(before=before)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 37, done.stderr
    assert {"lo", "skysail0", "0", "inside"} == set(done.stdout.split()) - {"bonding_masters"}


def test_a_shell_is_inside_the_cluster(cluster):
    script = 'ip -brief addr show skysail0; cat /proc/1/comm; echo "$KUBECONFIG"; pwd; cat /etc/resolv.conf; exit 37'
    command = [sys.executable, "-m", "skysail", "shell", f"--home={cluster.home.root}", "--", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cluster.home.root)
    assert done.returncode == 37, done.stderr
    link, init, login, folder, *resolver = done.stdout.splitlines()
    assert "10.244.0.1/16" in link
    assert init == Path("/proc/self/comm").read_text().strip()
    assert login == str(credentials.inside_path(cluster.home, "admin"))
    assert folder == str(cluster.home.root)
    assert resolver == dns_zone.resolv_conf("default").splitlines()
    absent = subprocess.run([*command[:-3], "no-such-program"], capture_output=True, text=True, check=False)
    assert (absent.returncode, absent.stderr) == (
        127,
        "skysail: no-such-program cannot be started: No such file or directory.\n",
    )


WITHOUT_A_PLANE = """
    import asyncio

    async def check():
        pods = PodNetwork()
        await pods.open()
        first, second = [
            await pods.attach(Pod(uid=str(n), namespace="default", name="p", hostname="p")) for n in range(2)
        ]
        listener = netns.make_socket(first.namespace)
        listener.bind((first.address, 8000))
        listener.listen()
        proxy = ServiceProxy(lambda endpoint: network.listen(endpoint, CallerLimits.of_this_process()))
        endpoints = ServiceEndpoint(second.address, 8000), ServiceEndpoint(first.address, 8000)
        await proxy.sync({ServiceEndpoint("10.96.0.9", 80): endpoints})
        said = []
        for host, port in ((first.address, 8000), ("10.96.0.9", 80)):
            caller = netns.make_socket(second.namespace)
            with caller:
                await asyncio.get_running_loop().sock_connect(caller, (host, port))
                accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
                with accepted:
                    await asyncio.get_running_loop().sock_sendall(accepted, b"ahoy")
                said.append((await asyncio.get_running_loop().sock_recv(caller, 10)).decode())
        listener.close()
        await proxy.close()
        own = netns.make_socket(first.namespace)
        own.bind(("127.0.0.1", 8001))
        own.listen()
        with own, await pods.dial(first.address, 8001) as line:
            said.append(line.getpeername()[0])
        pod = Pod(uid="many", namespace="default", name="p", hostname="p")
        said.append(len(set(await asyncio.gather(*(pods.attach(pod) for _ in range(5))))))
        given_up = asyncio.create_task(pods.attach(msgspec.structs.replace(pod, uid="given-up")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        given_up.cancel()
        for uid in ("0", "1", "many", "given-up"):
            await pods.detach(uid)
        said.append(os.listdir("/run/netns"))
        await pods.close()
        said.append(os.listdir("/run/netns"))
        print(json.dumps([*said, os.getuid()]))
        return 37

    return asyncio.run(check())
"""
IMPORTS = """
import concurrent.futures.thread, encodings.idna  # now, for nobody may not be allowed to read the interpreter's files
import msgspec
from skysail.base.open_files import CallerLimits
from skysail.cloud.provider import Pod
from skysail.local.network import netns, network
from skysail.local.network.pod_network import PodNetwork
from skysail.local.network.service_endpoints import ServiceEndpoint
from skysail.local.network.service_proxy import ServiceProxy
"""


@pytest.mark.parametrize("before", ["", BECOME_NOBODY], ids=["as-we-are", "as-nobody"])
def test_the_network_works_whoever_starts_the_cluster(before):
    done = subprocess.run(
        namespace_script(WITHOUT_A_PLANE, IMPORTS + before), capture_output=True, text=True, check=False
    )
    assert done.returncode == 37, done.stderr
    assert json.loads(done.stdout) == ["ahoy", "ahoy", "127.0.0.1", 1, ["services"], [], 0]


ISOLATED = """
    import asyncio

    async def check():
        pods = PodNetwork()
        await pods.open()
        server, client, other = [
            await pods.attach(Pod(uid=str(n), namespace="default", name="p", hostname="p")) for n in range(3)
        ]
        listener = netns.make_socket(server.namespace)
        listener.bind((server.address, 8000))
        listener.listen()
        loop = asyncio.get_running_loop()
        mailbox = netns.call(server.namespace, lambda: socket.socket(type=socket.SOCK_DGRAM))
        mailbox.setblocking(False)
        mailbox.bind((server.address, 8000))

        async def reached(who):
            caller = netns.make_socket(who.namespace)
            with caller:
                try:
                    async with asyncio.timeout(1):
                        await loop.sock_connect(caller, (server.address, 8000))
                except TimeoutError:
                    return False
                (await loop.sock_accept(listener))[0].close()
                return True

        async def answered(who):
            caller = netns.call(who.namespace, lambda: socket.socket(type=socket.SOCK_DGRAM))
            with caller:
                caller.setblocking(False)
                await loop.sock_connect(caller, (server.address, 8000))
                await loop.sock_sendall(caller, b"ahoy")
                try:
                    async with asyncio.timeout(1):
                        _, sender = await loop.sock_recvfrom(mailbox, 10)
                        await loop.sock_sendto(mailbox, b"aye", sender)
                        return (await loop.sock_recv(caller, 10)).decode()
                except TimeoutError:
                    return "silence"

        # IPv6: the address of a link follows from its hardware address.
        first, *rest = bytes.fromhex(hardware_address(server.address).replace(":", ""))
        mac = bytes([first ^ 2, *rest])
        link_local = str(IPv6Address(bytes.fromhex("fe80" + 12 * "0") + mac[:3] + b"\\xff\\xfe" + mac[3:]))
        six = netns.call(server.namespace, lambda: socket.socket(socket.AF_INET6))
        six.setblocking(False)
        six.bind(("::", 8006))
        six.listen()

        async def reached_over_ipv6(who, host=link_local, seconds=1):
            caller = netns.call(who.namespace, lambda: socket.socket(socket.AF_INET6))
            scope = netns.call(who.namespace, lambda: socket.if_nametoindex("eth0"))
            with caller:
                caller.setblocking(False)
                try:
                    async with asyncio.timeout(seconds):
                        await loop.sock_connect(caller, (host, 8006, 0, 0 if host == "::1" else scope))
                except (TimeoutError, OSError):
                    return False
                (await loop.sock_accept(six))[0].close()
                return True

        load = policy_enforcer.loader("")
        only_client = (Allowed((Peer(f"{client.address}/32"),), (PortRange("TCP", 8000, 8000), PortRange("UDP"))),)
        strict = Isolation({server.address: PodIsolation(ingress=only_client, egress=())})
        said = [await reached(client), await reached(other)]
        async with asyncio.timeout(60):
            while not await reached_over_ipv6(client):  # the kernel first looks for duplicates of an address
                await asyncio.sleep(0.1)
        load(nft_ruleset.render(strict, proxy_port=3128, outer_port=3129))
        said += [await reached(client), await reached(other), await answered(client), await answered(other)]
        said += [await reached_over_ipv6(client), await reached_over_ipv6(server, "::1")]
        mute = Isolation({client.address: PodIsolation(egress=())})
        load(nft_ruleset.render(mute, proxy_port=3128, outer_port=3129))
        said += [await reached(client), await reached(other)]
        said += [await reached_over_ipv6(client), await reached_over_ipv6(other, seconds=60)]
        ports = [socket.create_server(("10.244.0.1", port)) for port in (3129, 3130)]
        whole = Isolation({client.address: PodIsolation(egress=(Allowed((Peer("10.0.0.0/8"),)),))})
        load(nft_ruleset.render(whole, proxy_port=3128, outer_port=3129))
        for listening in ports:
            with listening, netns.make_socket(client.namespace) as caller:
                try:
                    async with asyncio.timeout(1):
                        await loop.sock_connect(caller, listening.getsockname())
                        said.append(True)
                except TimeoutError:
                    said.append(False)
        load(nft_ruleset.render(Isolation(), proxy_port=3128, outer_port=3129))
        said += [await reached(client), await reached(other)]
        listener.close()
        mailbox.close()
        six.close()
        await pods.close()
        print(json.dumps(said))
        return 37

    return asyncio.run(check())
"""
ISOLATION_IMPORTS = """
import socket
from ipaddress import IPv6Address
from skysail.local.network.neighbours import hardware_address
from skysail.local.network.policy import nft_ruleset, policy_enforcer
from skysail.local.network.policy.isolation import Allowed, Isolation, Peer, PodIsolation, PortRange
"""


@pytest.mark.parametrize("before", ["", BECOME_NOBODY], ids=["as-we-are", "as-nobody"])
def test_network_policies_hold_whoever_starts_the_cluster(before):
    script = namespace_script(ISOLATED, IMPORTS + ISOLATION_IMPORTS + before)
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 37, done.stderr
    free, strict, datagrams = [True, True], [True, False], ["aye", "silence"]
    own_ipv6, mute, outer_proxy = [False, True], [False, True], [False, True]
    assert json.loads(done.stdout) == [*free, *strict, *datagrams, *own_ipv6, *mute, *mute, *outer_proxy, *free]
