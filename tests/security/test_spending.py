"""A tenant against the money of others: caps, claims, budgets and Secrets at clouds.

The ledgers of the simulated clouds say what was launched, and the SpendAccounts what was reserved.
"""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.clouds import Books, at, claims, let_go
from tests.support.kubectl import TIMEOUT, apply, get, ok, pod, until_phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster
    from tests.support.tenant import Attempts, Tenant

Manifest = dict[str, Any]

SLEEP = ("sleep", "1000")
BUDGET_USD = 0.05
# A machine without GPUs costs 0.10 USD per hour at the simulated clouds.
MAX_PRICE_USD = 0.01
# Annotations and labels by which a tenant may want to be allowed more than the policy allows.
RAISES = {
    "cap of the object": {"skysail.dev/max-cost-usd": "1000000"},
    "price": {"runpod.io/max-price": "1000000"},
    "cap and price": {"skysail.dev/max-cost-usd": "1000000", "runpod.io/max-price": "1000000"},
    "negative cap": {"skysail.dev/max-cost-usd": "-1"},
    "cap without end": {"skysail.dev/max-cost-usd": "inf"},
    "cap that is no number": {"skysail.dev/max-cost-usd": "nan"},
    "cap of zeros": {"skysail.dev/max-cost-usd": "1e308"},
    "price that was written": {"runpod.io/cost-per-hr": "0"},
    "offloaded already": {"runpod.io/offloaded": "true"},
    "cheapest": {"skysail.dev/offload": "cheapest"},
    "timeout": {"modal-operator.io/timeout": "99999999"},
    "replicas": {"modal-operator.io/replicas": "100"},
}


@pytest.fixture(scope="module")
def books(node: Cluster) -> Books:
    return Books(node)


@pytest.fixture(autouse=True)
def clean(node: Cluster, books: Books, tenant: Tenant, other_tenant: Tenant) -> Iterator[None]:
    """After each test nothing is left at the clouds, and nothing foreign was touched."""
    yield
    for namespace in (tenant.namespace, other_tenant.namespace):
        let_go(node, namespace)
        books.until_let_go(namespace)
        ok(node, "delete", "offloadpolicy", namespace, "--ignore-not-found")


def limit(node: Cluster, namespace: str, **spec: Any) -> None:
    """Create a policy for this namespace alone, beside the default one."""
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    manifest = {
        "apiVersion": "skysail.dev/v1alpha1",
        "kind": "OffloadPolicy",
        "metadata": {"name": namespace},
        "spec": {"namespaceSelector": selector, "providers": ["modal", "runpod"], **spec},
    }
    apply(node, namespace, manifest)


def cloud_pod(name: str, *command: str, annotations: dict[str, str] | None = None, **options: Any) -> Manifest:
    manifest = at("modal", pod(name, *command, **options))
    manifest["metadata"]["annotations"] = annotations or {}
    return manifest


def listed(*manifests: Manifest) -> Manifest:
    return {"apiVersion": "v1", "kind": "List", "items": list(manifests)}


def until_waiting(node: Cluster, namespace: str, names: list[str]) -> dict[str, str]:
    """Return the reason for which each pod waits, once all of them say one."""
    reasons: dict[str, str] = {}

    def say_why() -> bool:
        for item in get(node, namespace, "pods")["items"]:
            rows = item["status"].get("containerStatuses", ())
            found = [row["state"]["waiting"]["reason"] for row in rows if "waiting" in row["state"]]
            if found and found[0] != "ContainerCreating":
                reasons[item["metadata"]["name"]] = found[0]
        return reasons.keys() >= set(names)

    node.until(say_why, "every pod to say why it waits")
    return reasons


def uids(node: Cluster, namespace: str) -> dict[str, str]:
    return {item["metadata"]["name"]: item["metadata"]["uid"] for item in get(node, namespace, "pods")["items"]}


def account(node: Cluster, namespace: str) -> Manifest:
    done = node.kubectl("get", "spendaccount", namespace, "-o", "json")
    return json.loads(done.stdout).get("status", {}) if done.returncode == 0 else {}


def test_tenant_cannot_raise_the_price_that_its_policy_allows(
    node: Cluster, tenant: Tenant, books: Books, attempts: Attempts
) -> None:
    limit(node, tenant.namespace, maxPrice=MAX_PRICE_USD)
    names = {name: f"p-{number}" for number, name in enumerate(RAISES)}
    done = tenant.apply(listed(*(cloud_pod(names[name], *SLEEP, annotations=RAISES[name]) for name in RAISES)))
    assert done.returncode == 0, done.stderr
    reasons = until_waiting(node, tenant.namespace, list(names.values()))
    found = uids(node, tenant.namespace)
    for name, title in names.items():
        launched = books.launches("modal", found[title]) + books.launches("runpod", found[title])
        attempts.record("caps: price", name, held=launched == 0, detail=reasons[title])
    # Without the policy the first pod is launched: nothing else held it.
    ok(node, "delete", "pods", *(title for title in names.values() if title != "p-0"), "-n", tenant.namespace)
    ok(node, "delete", "offloadpolicy", tenant.namespace)
    until_phase(node, tenant.namespace, "p-0", "Running")


def test_tenant_cannot_raise_its_budget(node: Cluster, tenant: Tenant, attempts: Attempts) -> None:
    limit(node, tenant.namespace, budget={"amount": BUDGET_USD, "period": "Day"}, maxDurationSeconds=3600)
    assert tenant.apply(cloud_pod("first", *SLEEP)).returncode == 0
    until_phase(node, tenant.namespace, "first", "Running")
    names = {name: f"p-{number}" for number, name in enumerate(RAISES)}
    done = tenant.apply(listed(*(cloud_pod(names[name], *SLEEP, annotations=RAISES[name]) for name in RAISES)))
    assert done.returncode == 0, done.stderr
    reasons = until_waiting(node, tenant.namespace, list(names.values()))
    for name, title in names.items():
        launched = [
            claim
            for claim in claims(node, tenant.namespace)
            if claim["spec"]["owner"]["name"] == title and claim["status"].get("instanceId")
        ]
        attempts.record("caps: budget", name, held=launched == [], detail=(reasons[title], launched))
    status = account(node, tenant.namespace)
    used = sum(row["usd"] for row in (*status.get("reservations", ()), *status.get("totals", ())))
    attempts.record("caps: budget", "sum of all reservations", held=used <= BUDGET_USD + 1e-6, detail=status)


def test_tenant_cannot_adopt_or_end_the_instance_of_another(
    node: Cluster, tenant: Tenant, other_tenant: Tenant, books: Books, attempts: Attempts
) -> None:
    assert other_tenant.apply(cloud_pod("paid", *SLEEP)).returncode == 0
    until_phase(node, other_tenant.namespace, "paid", "Running")
    (claim,) = claims(node, other_tenant.namespace)
    instance, title = claim["status"]["instanceId"], claim["metadata"]["name"]
    owner = get(node, other_tenant.namespace, "pod", "paid")["metadata"]
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "paid", "uid": owner["uid"], "controller": False}
    forged: dict[str, Manifest] = {
        "id at RunPod": {"annotations": {"runpod.io/pod-id": instance}},
        "label with the id": {"labels": {"runpod.io/pod-id": instance, "runpod.io/managed": "true"}},
        "id of the sandbox": {"annotations": {"modal-operator.io/function-id": instance}},
        "id of the app": {"annotations": {"modal-operator.io/app-id": instance}},
        "name of the claim": {"annotations": {"skysail.dev/claim": title}, "labels": {"skysail.dev/claim": title}},
        "finalizer of the claim": {"finalizers": ["skysail.dev/claim"]},
        "owner": {"ownerReferences": [reference]},
    }
    names = {way: f"p-{number}" for number, way in enumerate(forged)}
    pods = {way: cloud_pod(names[way], "true") for way in forged}
    for way, metadata in forged.items():
        pods[way]["metadata"] |= metadata
    done = tenant.apply(listed(*pods.values()))
    assert done.returncode == 0, done.stderr
    for way, name in names.items():
        if way != "owner":  # the garbage collector deletes it, because its owner is in another namespace
            until_phase(node, tenant.namespace, name, "Succeeded")
        tenant.kubectl("patch", "pod", name, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    ok(node, "delete", "pods", "--all", "-n", tenant.namespace, TIMEOUT)
    node.until(lambda: claims(node, tenant.namespace) == [], "the claims of the tenant to be gone")
    (still,) = claims(node, other_tenant.namespace)
    is_same = still["status"]["instanceId"] == instance and still["spec"] == claim["spec"]
    held = is_same and title in books.billed("modal")
    for way in forged:
        attempts.record("instances of others", way, held=held, detail=still)
    phase = get(node, other_tenant.namespace, "pod", "paid")["status"]["phase"]
    attempts.record("instances of others", "the pod of the other runs", held=phase == "Running", detail=phase)


def test_tenant_cannot_spend_the_budget_of_another_namespace(
    node: Cluster, tenant: Tenant, other_tenant: Tenant, books: Books, attempts: Attempts
) -> None:
    limit(node, tenant.namespace, budget={"amount": 0.0, "period": "Month"})
    limit(node, other_tenant.namespace, budget={"amount": 100.0, "period": "Month"})
    other = other_tenant.namespace
    metadata: dict[str, Manifest] = {
        "label of the namespace": {"labels": {"kubernetes.io/metadata.name": other}},
        "annotation of the namespace": {"annotations": {"skysail.dev/namespace": other}},
        "annotation of the account": {"annotations": {"skysail.dev/spend-account": other}},
        "annotation of the policy": {"annotations": {"skysail.dev/policy": other}},
    }
    names = {}
    for number, (way, forged) in enumerate(metadata.items()):
        manifest = cloud_pod(f"p-{number}", *SLEEP)
        manifest["metadata"] |= forged
        assert tenant.apply(manifest).returncode == 0
        names[way] = f"p-{number}"
    reasons = until_waiting(node, tenant.namespace, list(names.values()))
    found = uids(node, tenant.namespace)
    for way, title in names.items():
        held = reasons[title] == "BudgetExhausted" and books.launches("modal", found[title]) == 0
        attempts.record("budgets of others", way, held=held, detail=reasons[title])
    stolen = cloud_pod("stolen", *SLEEP)
    label = ("label", "namespace", tenant.namespace, f"kubernetes.io/metadata.name={other}", "--overwrite")
    amount = ("patch", "offloadpolicy", tenant.namespace, "--type=merge", "-p", '{"spec": {"budget": {"amount": 9}}}')
    for words, stdin in (
        (("create", "-n", other, "-f", "-"), json.dumps(stolen)),
        (("patch", "spendaccount", other, "--type=merge", "-p", '{"spec": {"namespace": "x"}}'), None),
        (("delete", "spendaccount", tenant.namespace), None),
        (label, None),
        (amount, None),
    ):
        done = tenant.kubectl(*words, stdin=stdin)
        attempts.record("budgets of others", " ".join(words[:3]), held="orbidden" in done.stderr, detail=done)
    status = account(node, other)
    attempts.record(
        "budgets of others",
        "the account of the other",
        held=not status.get("reservations") and not status.get("totals"),
        detail=status,
    )


def test_no_secret_of_another_namespace_leaves_for_a_cloud(
    node: Cluster, tenant: Tenant, other_tenant: Tenant, attempts: Attempts
) -> None:
    """The policies allow Secrets, so that only the reference holds the tenant back."""
    canary, other = f"canary-{secrets.token_hex(16)}", other_tenant.namespace
    ok(node, "create", "secret", "generic", "canary", f"--from-literal=key={canary}", "-n", other)
    path = f"{other}/canary"
    own = f"own-{secrets.token_hex(16)}"
    ok(node, "create", "secret", "generic", "own", f"--from-literal=key={own}", "-n", tenant.namespace)
    whole = {"envFrom": [{"secretRef": {"name": "own"}}]}
    assert tenant.apply(cloud_pod("own", "sh", "-c", "env; sleep 1000", container=whole)).returncode == 0
    rows = []
    for name in ("canary", path, f"../{path}", f"{other}%2fcanary", f"{other}.canary", f"{other}:canary", "x" * 5000):
        env = {"env": [{"name": "STOLEN", "valueFrom": {"secretKeyRef": {"name": name, "key": "key"}}}]}
        whole = {"envFrom": [{"secretRef": {"name": name, "optional": True}}]}
        mount = {"volumeMounts": [{"name": "s", "mountPath": "/stolen"}]}
        volumes = [{"name": "s", "secret": {"secretName": name, "optional": True}}]
        show = ("sh", "-c", "env; cat /stolen/*; sleep 1000")
        for way, manifest in (
            ("env", cloud_pod(f"p-{len(rows)}-env", *show, container=env)),
            ("envFrom", cloud_pod(f"p-{len(rows)}-from", *show, container=whole)),
            ("volume", cloud_pod(f"p-{len(rows)}-volume", *show, container=mount, volumes=volumes)),
            ("pull secret", cloud_pod(f"p-{len(rows)}-pull", *show, imagePullSecrets=[{"name": name}])),
        ):
            rows.append((f"{way}: {name[:40]}", manifest))
    # The API server rejects some of them, and kubectl goes on with the others.
    done = tenant.kubectl("create", "-f", "-", stdin=json.dumps(listed(*(manifest for _, manifest in rows))))
    made = {item["metadata"]["name"] for item in get(node, tenant.namespace, "pods")["items"]}
    # At least the plain names are accepted, one for each way.
    assert len(made) > len(rows) // 7

    def have_settled() -> bool:
        items = get(node, tenant.namespace, "pods")["items"]
        return all(
            item["status"]["phase"] != "Pending"
            or any(_waits(row) for row in item["status"].get("containerStatuses", ()))
            for item in items
        )

    node.until(have_settled, "every pod to run or to say why it waits")
    # A Secret of the tenant's own gets there: else the attempts show nothing.
    node.until(lambda: own in node.kubectl("logs", "own", "-n", tenant.namespace).stdout, "the tenant's own Secret")
    printed = "".join(node.kubectl("logs", name, "-n", tenant.namespace).stdout for name in sorted(made))
    written = ok(node, "get", "pods,events,cloudinstances", "-A", "-o", "json") + node.log("operator")
    ledgers = "".join(path.read_text() for path in sorted((node.home.root / "simulated").glob("*.jsonl")))
    held = canary not in printed + written + ledgers + done.stdout + done.stderr
    for row, _ in rows:
        attempts.record("foreign Secrets at clouds", row, held=held)


def _waits(row: Manifest) -> bool:
    return row["state"].get("waiting", {}).get("reason", "ContainerCreating") != "ContainerCreating"
