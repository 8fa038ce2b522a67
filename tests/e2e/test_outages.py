"""Whatever happens between operator and API server, the cache ends equal to what kubectl says, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest

from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.kube.api.objects import Object
from skysail.kube.client import kubeconfig
from skysail.kube.client.client import Client
from skysail.kube.client.errors import NotFound
from skysail.kube.client.http_transport import HttpTransport
from skysail.local import addresses, files
from skysail.local.cluster.supervisor import Unit
from tests.support import proxy as faults
from tests.support.proxy import Proxy, Seen

# Suspended jobs get a status and have no children, so thousands of them are cheap.
JOBS = TRAINING_JOB.resource
CONCURRENCY = 64


def manifest(name: str) -> dict:
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"framework": "pytorch", "workers": 1, "image": "busybox", "command": ["true"], "suspend": True},
    }


@asynccontextmanager
async def admin(cluster):
    transport = HttpTransport(kubeconfig.from_file(cluster.kubeconfig))
    try:
        yield Client(transport)
    finally:
        await transport.close()


def each(cluster, names, work) -> None:
    """Do the same to many objects, some at a time."""

    async def main():
        gate = asyncio.Semaphore(CONCURRENCY)
        async with admin(cluster) as client:

            async def one(name):
                async with gate:
                    await work(client, name)

            await asyncio.gather(*(one(name) for name in names))

    asyncio.run(main())


async def create(client: Client, name: str) -> None:
    await client.create(JOBS, manifest(name), Object)


async def change(client: Client, name: str) -> None:
    await client.merge_patch(JOBS, "default", name, {"spec": {"runPolicy": {"backoffLimit": 7}}}, Object)


async def delete(client: Client, name: str) -> None:
    try:
        await client.delete(JOBS, await client.get(JOBS, "default", name, Object), Object)
    except NotFound:
        return


@pytest.fixture(autouse=True)
def no_jobs_of_others(cluster):
    """Neither what another module left, nor what a failed test left here."""
    clear(cluster)
    yield
    clear(cluster)


def clear(cluster) -> None:
    """All of a namespace in one request; kubectl would ask for each."""
    found = cluster.kubectl("get", JOBS.plural, "-A", "-o", "jsonpath={.items[*].metadata.namespace}")
    assert found.returncode == 0, found.stderr
    for namespace in set(found.stdout.split()):
        cluster.until(lambda name=namespace: is_cleared(cluster, name), f"the TrainingJobs of {namespace} to be gone")


def is_cleared(cluster, namespace: str) -> bool:
    """Thousands at once may take the server longer than it waits for itself: then it says so, and is asked again."""
    return cluster.kubectl("delete", "--raw", JOBS.path(namespace)).returncode == 0


def live(cluster) -> dict[str, dict]:
    """What kubectl says, in a process of its own."""
    done = cluster.kubectl("get", JOBS.plural, "-o", "json", "--chunk-size=0")
    assert done.returncode == 0, done.stderr
    return {row["metadata"]["name"]: row for row in json.loads(done.stdout)["items"]}


def audit(cluster) -> tuple[int, dict[str, list[int]]]:
    """What `skysail audit-cache` says: its exit code, and the numbers by kind."""
    done = subprocess.run(
        [sys.executable, "-m", "skysail", "audit-cache", "--home", str(cluster.home.root)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert done.returncode in {0, 1}, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    return done.returncode, {row[0]: [int(number) for number in row[1:]] for row in rows}


def assert_the_cache_equals_kubectl(cluster) -> None:
    code, numbers = audit(cluster)
    assert code == 0, numbers
    count = len(live(cluster))
    assert numbers[JOBS.crd_name] == [count, count, 0, 0, 0]


def everything_has_its_status(cluster) -> bool:
    return all(
        row.get("status", {}).get("observedGeneration") == row["metadata"]["generation"]
        for row in live(cluster).values()
    )


def watches_jobs(seen: Seen) -> bool:
    return seen.is_watch and seen.path.endswith(f"/{JOBS.plural}")


def test_a_killed_api_server_that_stays_away_is_survived(cluster):
    """Away for longer than the lease: the operator ends, is started anew by whoever runs it, and finds its way."""
    login = cluster.operator_kubeconfig
    files.token(cluster.home.audit_token)
    flags = (f"--webhook-host={addresses.CLUSTER_IP}", f"--audit-token={cluster.home.audit_token}")
    argv = (sys.executable, "-P", "-m", "skysail", "run", f"--kubeconfig={login}", *flags)
    before = len(cluster.log("survivor"))  # said by others, in tests of other files
    cluster.control.start_unit(Unit(name="survivor", argv=argv))
    try:
        each(cluster, [f"before-{i}" for i in range(50)], create)
        cluster.until(lambda: everything_has_its_status(cluster), "the first statuses")
        cluster.signal("kube-apiserver", signal.SIGKILL)
        cluster.stop("kube-apiserver")
        cluster.until(lambda: "lease lost" in cluster.log("survivor")[before:], "the lease to be lost")
        cluster.until(lambda: cluster.unit("survivor").restarts >= 3, "the operator to have tried for a while")
        cluster.resume("kube-apiserver")
        cluster.until(lambda: cluster.kubectl("get", "--raw", "/readyz").returncode == 0, "the API server")
        each(cluster, [f"after-{i}" for i in range(50)], create)
        each(cluster, [f"before-{i}" for i in range(25)], delete)
        cluster.until(lambda: everything_has_its_status(cluster), "the statuses after the outage")
        assert len(live(cluster)) == 75
        assert_the_cache_equals_kubectl(cluster)
        assert "Traceback" not in cluster.log("survivor")[before:]
    finally:
        cluster.stop("survivor")


@pytest.mark.parametrize("changes", [500, pytest.param(5000, marks=pytest.mark.on_demand)])
def test_changes_behind_a_broken_watch_and_a_410_are_found(cluster, changes):
    old, deleted = changes * 7 // 10, changes * 4 // 10
    each(cluster, [f"old-{i}" for i in range(old)], create)
    with Proxy(cluster) as proxy:
        proxy.on(watches_jobs, faults.CutWatch(after=changes // 5))
        proxy.on(watches_jobs, faults.CutBefore(), times=100_000)
        cluster.start_operator("operator", kubeconfig=proxy.kubeconfig, restart=True)
        try:
            cluster.until(lambda: sum(watches_jobs(seen) for seen in proxy.seen) > 1, "the watch to be broken")
            each(cluster, [f"old-{i}" for i in range(deleted)], delete)
            each(cluster, [f"old-{i}" for i in range(deleted, old)], change)
            each(cluster, [f"new-{i}" for i in range(old - deleted)], create)
            proxy.clear()
            proxy.on(watches_jobs, faults.gone())
            cluster.until(lambda: everything_has_its_status(cluster), "every status")
            assert len(live(cluster)) == 2 * (old - deleted)
            assert_the_cache_equals_kubectl(cluster)
        finally:
            cluster.end_operator()


def test_cache_audit_dropped_event_is_found_and_cache_is_relisted(cluster):
    def lost(event: dict) -> bool:
        return event["type"] == "ADDED" and event["object"]["metadata"]["name"] == "lost"

    with Proxy(cluster) as proxy:
        proxy.on(watches_jobs, faults.DropEvent(lost))
        cluster.start_operator("operator", kubeconfig=proxy.kubeconfig)
        try:
            each(cluster, ["lost"], create)
            each(cluster, ["seen"], create)
            cluster.until(lambda: "status" in live(cluster)["seen"], "the other object's status")
            assert "status" not in live(cluster)["lost"]
            code, numbers = audit(cluster)
            assert (code, numbers[JOBS.crd_name]) == (1, [1, 2, 1, 0, 0])
            cluster.until(lambda: "status" in live(cluster)["lost"], "the lost object's status")
            assert_the_cache_equals_kubectl(cluster)
        finally:
            cluster.stop("operator")


@pytest.mark.parametrize("after_reply", [pytest.param(False, marks=pytest.mark.on_demand), True])
def test_killed_after_every_single_write_the_end_is_the_same(cluster, after_reply):
    """Lease, webhook Secret and statuses: whatever the operator was doing, a new process finishes it."""

    def scenario() -> None:
        each(cluster, ["one", "two"], create)

    def finished() -> bool:
        return live(cluster).keys() == {"one", "two"} and everything_has_its_status(cluster)

    with Proxy(cluster) as proxy:
        forget_the_operator(cluster)
        cluster.start_operator("operator", kubeconfig=proxy.kubeconfig)
        scenario()
        cluster.until(finished, "the reference run")
        writes = [seen for seen in proxy.seen if is_counted(seen)]
        reference = ends(cluster)
        cluster.stop("operator")
        for nth in range(1, len(writes) + 1):
            clear(cluster)
            forget_the_operator(cluster)
            proxy.clear()
            kill = faults.Kill(lambda: cluster.signal("operator", signal.SIGKILL), after_reply=after_reply)
            proxy.on(is_counted, kill, nth=nth)
            cluster.begin_operator("operator", kubeconfig=proxy.kubeconfig)
            scenario()

            def is_over(nth: int = nth) -> bool:
                """Killed; or done without a write that only the reference run had to do, such as one again."""
                is_killed = cluster.unit("operator").state == "stopped"
                return is_killed or (finished() and sum(map(is_counted, proxy.seen)) < nth)

            cluster.until(is_over, f"the kill after write {nth}")
            proxy.forget_rules()
            cluster.start_operator("operator", kubeconfig=proxy.kubeconfig)
            cluster.until(finished, f"the end after a kill at write {nth}")
            assert ends(cluster) == reference
            cluster.stop("operator")


def is_counted(seen: Seen) -> bool:
    """Leases are renewed as often as time passes, and events are told whenever there is time for it."""
    return seen.is_mutating and "/leases" not in seen.path and "/events" not in seen.path


def forget_the_operator(cluster) -> None:
    """As if none had ever run: every run then has the same writes to do."""
    for what in ("mutatingwebhookconfiguration/skysail", "lease/skysail-operator", "secret/skysail-webhook"):
        done = cluster.kubectl("delete", what, "-n", "skysail-system", "--ignore-not-found")
        assert done.returncode == 0, done.stderr


def ends(cluster) -> dict:
    """The end state, without what differs from run to run."""
    return {
        name: [(c["type"], c["status"], c["reason"], c["message"]) for c in row["status"]["conditions"]]
        for name, row in live(cluster).items()
    }
