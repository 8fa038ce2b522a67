"""The placement webhook as a lever or a brake, and pods that forge their way to a cloud's node."""

from __future__ import annotations

import asyncio
import base64
import copy
import io
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer

from skysail.claims.limits import policy_check
from skysail.claims.limits.offload_policy import OFFLOAD_POLICY, OffloadPolicy
from skysail.claims.limits.policy_check import PolicyQuery
from skysail.kinds.offload import placement_webhook, resource_limits_webhook
from skysail.kinds.offload.caches import Caches
from skysail.kinds.offload.config import OffloadConfig
from skysail.kinds.offload.observer import PlacementObserver
from skysail.kinds.offload.plan import placement
from skysail.kinds.offload.plan.facts import placement_facts
from skysail.kube.admission import server
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import NAMESPACE
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.unit.kinds.offload.samples import NODES, NOW, gpu_pod, observation, pod, policy
from tests.unit.kinds.offload.test_placement_webhook import Offers

if TYPE_CHECKING:
    from skysail.kube.admission.hooks import Hook
    from tests.support.tenant import Attempts

CONFIG = OffloadConfig(nodes=NODES)
PATH = "/admit/placement"
ASKING = {"modal-operator.io/offload": "true"}
GARBAGE = {
    "nothing": b"",
    "no JSON": b"<html>",
    "a list": b"[]",
    "no request": b"{}",
    "request of another type": b'{"request": 7}',
    "object of another type": b'{"request": {"uid": "u", "object": "pod"}}',
    "deep nesting": b'{"request":' * 5_000,
    "deep nesting in the object": b'{"request": {"uid": "u", "object": ' + b"[" * 50_000 + b"]" * 50_000 + b"}}",
    "invalid UTF-8": b'{"request": {"uid": "\xff"}}',
    "NUL": b'{"request": {"uid": "\0"}}',
    "spec of another type": b'{"request": {"uid": "u", "namespace": "n", "object": {"metadata": {}, "spec": 7}}}',
    "containers of another type": b'{"request": {"uid": "u", "namespace": "n", "object": {"spec": {"containers": 7}}}}',
    "annotations of another type": (
        b'{"request": {"uid": "u", "namespace": "n", "object": {"metadata": {"annotations": {"a": 1}}, "spec": {}}}}'
    ),
    "megabytes": b'{"request": {"uid": "' + b"x" * 12_000_000 + b'"}}',
}


def hooks() -> tuple[Hook, ...]:
    caches = Caches.create(Cache(OFFLOAD_POLICY.resource, OffloadPolicy), Cache(NAMESPACE, Object))
    caches.policies.put(policy())
    caches.policies.synced.set()
    caches.namespaces.put(msgspec.convert({"metadata": {"name": "team"}}, Object))
    observer = PlacementObserver(
        Client(ApiModel(World())), caches, CONFIG, Offers(0.0), now=lambda: NOW, clock=lambda: 0.0
    )
    return (*placement_webhook.hooks(observer, CONFIG), *resource_limits_webhook.hooks(NODES))


async def made_hooks() -> tuple[Hook, ...]:
    return hooks()


async def answered(*bodies: bytes) -> list[tuple[int, bytes]]:
    async with TestClient(TestServer(server.application(hooks()))) as client:
        found = []
        for body in bodies:
            async with client.post(PATH, data=io.BytesIO(body)) as answer:
                found.append((answer.status, await answer.read()))
        return found


def review(manifest: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"request": {"uid": "u", "namespace": "team", "object": manifest}})


def test_garbage_is_no_error_of_the_server_and_denies_nothing(attempts: Attempts) -> None:
    """A body that is no review gets 4xx. An object that no API server would send passes unchanged."""
    for (name, _), (status, content) in zip(GARBAGE.items(), asyncio.run(answered(*GARBAGE.values())), strict=True):
        is_refused = 400 <= status < 500
        is_unchanged = status == 200 and b'"allowed":true' in content and b'"patch"' not in content
        attempts.record("T10 webhook: garbage", name, held=is_refused or is_unchanged, detail=(status, content[:200]))


def test_a_good_review_after_garbage_is_answered(attempts: Attempts) -> None:
    manifest = msgspec.to_builtins(gpu_pod(annotations=ASKING))
    *_, (status, content) = asyncio.run(answered(*GARBAGE.values(), review(manifest)))
    attempts.record("T10 webhook: garbage", "and then a pod", held=status == 200 and b'"patch"' in content)


def test_webhooks_are_open_when_they_are_down_and_never_see_the_cluster_itself(attempts: Attempts) -> None:
    scope = server.NamespaceScope((), ("kube-system", "skysail-system"))
    address = server.WebhookAddress(url="https://127.0.0.1:9443")
    for row in server.configuration("skysail", asyncio.run(made_hooks()), address, b"ca", scope)["webhooks"]:
        selected = row["namespaceSelector"]["matchExpressions"][0]
        facts = {
            "fail-open": row["failurePolicy"] == "Ignore",
            "short timeout": row["timeoutSeconds"] <= 5,
            "no side effects": row["sideEffects"] == "None",
            "not in kube-system": selected["operator"] == "NotIn" and "kube-system" in selected["values"],
            "asked only for what matters": bool(row["matchConditions"]),
        }
        for what, is_so in facts.items():
            attempts.record("T10 webhook: registration", f"{row['name']}: {what}", held=is_so, detail=row)


def test_placing_a_pod_twice_changes_nothing_more(attempts: Attempts) -> None:
    """The API server may ask again after other webhooks (reinvocationPolicy IfNeeded)."""
    manifest = msgspec.to_builtins(gpu_pod(annotations=ASKING))
    ((_, content),) = asyncio.run(answered(review(manifest)))
    placed = patched(manifest, content)
    ((_, again),) = asyncio.run(answered(review(placed)))
    attempts.record("T10 webhook: idempotent", "a second review", held=patched(placed, again) == placed, detail=again)


def patched(manifest: dict[str, Any], content: bytes) -> dict[str, Any]:
    """Apply a JSON patch that only adds and replaces members of objects."""
    made = copy.deepcopy(manifest)
    text = msgspec.json.decode(content)["response"].get("patch", "")
    for row in msgspec.json.decode(base64.b64decode(text)) if text else ():
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in row["path"].split("/")[1:]]
        target = made
        for part in parents:
            target = target[int(part)] if isinstance(target, list) else target[part]
        target[last] = row["value"]
    return made


TOLERATION = {"key": "modal-operator.io/virtual", "operator": "Exists"}
AFFINITY = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["modal.com"]}]}
FORGED: dict[str, dict[str, Any]] = {
    "toleration": {"spec": {"tolerations": [TOLERATION]}},
    "every taint tolerated": {"spec": {"tolerations": [{"operator": "Exists"}]}},
    "node selector": {
        "spec": {"nodeSelector": {"kubernetes.io/hostname": "modal.com"}, "tolerations": [TOLERATION]},
    },
    "node affinity": {
        "spec": {
            "tolerations": [TOLERATION],
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [AFFINITY]}}
            },
        },
    },
    "node name": {"spec": {"nodeName": "modal.com", "tolerations": [TOLERATION]}},
    "marked as automatic": {"annotations": {"skysail.dev/automatic": "true"}},
    "asked": {"annotations": ASKING},
}


@pytest.mark.parametrize("name", FORGED)
def test_without_a_policy_no_pod_is_placed_or_launched(name: str, attempts: Attempts) -> None:
    """A pod that names the node by hand is bound by the scheduler or by itself: the launch is checked once more."""
    forged = FORGED[name]
    seen = pod(forged.get("spec", {}), annotations=forged.get("annotations", {}))
    decision = placement.decide(placement_facts(observation(seen, policies=(), stage="admission")))
    attempts.record("T13 forged way to a node", f"{name}: placement", held=not isinstance(decision, placement.Place))
    query = PolicyQuery(
        namespace="team", namespace_labels={}, provider="modal", image="python:3.11", uses_secrets=False
    )
    attempts.record("T13 forged way to a node", f"{name}: launch", held=not policy_check.check((), query).allowed)
