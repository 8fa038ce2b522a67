"""Operators that die while they pay at Modal: after a write to the API server, or at a call over Modal's own wire."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import msgspec

from skysail.app import stand_ins
from skysail.cloud.simulated import billing
from skysail.cloud.simulated.ledger import Row
from skysail.kube.leader_election import NAME as LEASE
from skysail.local import addresses
from tests.support import proxy as faults
from tests.support import sampling
from tests.support.clouds import at, claims
from tests.support.kubectl import TIMEOUT, Manifest, apply, get, ok, pod

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.cluster import Cluster
    from tests.support.proxy import Proxy, Seen
    from tests.support.wire_proxy import WireProxy

OPERATOR = "operator"
_KINDS = ("/cloudinstances", "/pods/", "/trainingjobs", "/modaljobs", "/trainjobs", "/spendaccounts", "/jobs")


class Crashes:
    """An operator that speaks through proxies with the API server and with the stand-in for Modal."""

    def __init__(self, cluster: Cluster, api: Proxy, wire: WireProxy) -> None:
        self.cluster = cluster
        self.api = api
        self.wire = wire
        self.namespace = ""
        self.killed: list[str] = []

    def start(self) -> None:
        """Start the operator, without a wait until the lease of the dead one has expired."""
        ok(self.cluster, "delete", "lease", LEASE, "-n", "skysail-system", "--ignore-not-found")
        home = self.cluster.home
        flags = (
            f"--node-address={addresses.CLUSTER_IP}",
            f"--node-certificate={home.pki / 'node.crt'}",
            f"--node-key={home.pki / 'node.key'}",
            f"--data-dir={home.root / 'clouds'}",
        )
        self.cluster.start_operator(OPERATOR, kubeconfig=self.api.kubeconfig, flags=flags, env=self.wire.env)
        ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        self.cluster.until(
            lambda: self.cluster.kubectl("get", "node", "modal.com", "-o", ready).stdout == "True", "node modal.com"
        )

    def kill(self) -> None:
        """Returns when the operator is dead."""
        self.cluster.signal(OPERATOR, signal.SIGKILL)
        self.cluster.until(lambda: self.is_dead, "the operator to be dead")

    @property
    def is_dead(self) -> bool:
        return self.cluster.unit(OPERATOR).state == "stopped"

    def rows(self) -> list[Row]:
        try:
            whole, _, _ = stand_ins.ledger_file(self.cluster.home, "modal").read_bytes().rpartition(b"\n")
        except FileNotFoundError:
            return []
        return msgspec.json.Decoder(Row).decode_lines(whole)

    def check(self) -> None:
        """At most one billable sandbox per claim, at any time so far."""
        assert billing.max_concurrent(self.rows()) <= 1

    def until_clean(self) -> None:
        """When the objects are gone, their claims go, and nothing is billed any more."""
        kinds = "modaljobs,trainjobs,trainingjobs,jobs,pods"
        ok(self.cluster, "delete", kinds, "--all", "-n", self.namespace, TIMEOUT)
        self.cluster.until(lambda: claims(self.cluster, self.namespace) == [], "the claims to be gone")
        self.cluster.until(lambda: billing.billable(self.rows()) == (), "the ledger to be clean")
        self.check()


class Story:
    """An object that ends well at Modal, once for each effect of its life."""

    def __init__(self, kind: str, make: Callable[[str], Manifest], phase: str) -> None:
        self.kind = kind
        self.make = make
        self.phase = phase

    def is_done(self, scene: Crashes, name: str) -> bool:
        status = get(scene.cluster, scene.namespace, self.kind, name).get("status", {})
        if self.kind == "trainjob":
            rows = {row["type"]: row["status"] for row in status.get("conditions", ())}
            return rows.get("Complete") == "True"
        return status.get("phase") == self.phase

    def play(self, scene: Crashes, where: str) -> int:
        """Kill the operator at each sampled effect of a life of its own. Returns the number of crashes.

        An operator that died on its way to the cloud leaves a doubt of a minute: the next ones are killed meanwhile.
        """
        names: list[str] = []
        for nth in sampling.numbers():
            name = f"{self.kind}-{nth}-{where}"
            names.append(name)
            self._arm(scene, where, nth, {*names[:-1]})
            apply(scene.cluster, scene.namespace, self.make(name))
            scene.cluster.until(lambda name=name: scene.is_dead or self.is_done(scene, name), f"effect {nth}")
            scene.api.forget_rules()
            scene.wire.forget()
            if not scene.is_dead:
                break
            scene.killed.append(name)
            scene.start()
        for name in names:
            self._until_done(scene, name)
        scene.check()
        return len(names) - 1

    def _until_done(self, scene: Crashes, name: str) -> None:
        """Wait for a good end. On a busy machine an operator may lose its lease and end: another one follows."""

        def is_done() -> bool:
            if scene.is_dead:
                scene.start()
            return self.is_done(scene, name)

        try:
            scene.cluster.until(is_done, f"{name} to end well")
        except AssertionError as error:
            told = [claim.get("status") for claim in claims(scene.cluster, scene.namespace)]
            raise AssertionError(f"{error}; claims: {told}; operator: {scene.cluster.log(OPERATOR)[-3000:]}") from error

    def _arm(self, scene: Crashes, where: str, nth: int, others: set[str]) -> None:
        if where == "write":
            kill = faults.Kill(scene.kill)
            scene.api.on(lambda seen: _is_write(seen, scene.namespace, others), kill, nth=nth)
        else:
            scene.wire.kill_at(nth, "before" if where == "before" else "done", scene.kill)


def _is_write(seen: Seen, namespace: str, others: set[str]) -> bool:
    is_of_a_life = any(kind in seen.path for kind in _KINDS)
    words = seen.path.encode() + seen.body
    is_of_another = any(f"/{other}".encode() in words or f'"{other}'.encode() in words for other in others)
    return seen.is_mutating and is_of_a_life and not is_of_another and not seen.path.endswith("/binding")


def pod_story() -> Story:
    return Story("pod", lambda name: at("modal", pod(name, "true")), "Succeeded")


def gpu_pod_story() -> Story:
    """A sandbox with a GPU, which Modal creates by other calls."""

    def make(name: str) -> Manifest:
        manifest = at("modal", pod(name, "true"))
        manifest["metadata"]["annotations"] = {"modal-operator.io/gpu": "T4"}
        return manifest

    return Story("pod", make, "Succeeded")


def modal_job_story() -> Story:
    def make(name: str) -> Manifest:
        return {
            "apiVersion": "modal-operator.io/v1alpha1",
            "kind": "ModalJob",
            "metadata": {"name": name},
            "spec": {"image": "busybox:1.36", "command": ["true"]},
        }

    return Story("modaljob", make, "Succeeded")


def train_job_story() -> Story:
    def make(name: str) -> Manifest:
        return {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": name, "annotations": {"modal.com/enabled": "true"}},
            "spec": {
                "runtimeRef": {"name": "modal-pytorch-runtime"},
                "trainer": {"image": "busybox:1.36", "command": ["true"]},
            },
        }

    return Story("trainjob", make, "")


def gang_story() -> Story:
    """A TrainingJob of two workers, which is one App with one call at Modal."""
    annotations = {"skysail.dev/offload": "modal", "modal-operator.io/gpu-type": "H100"}

    def make(name: str) -> Manifest:
        return {
            "apiVersion": "ml.example.com/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {
                "framework": "pytorch",
                "image": "python:3",
                "command": ["true"],
                "workers": 2,
                "gpuPerWorker": 8,
            },
        }

    return Story("trainingjob", make, "Succeeded")
