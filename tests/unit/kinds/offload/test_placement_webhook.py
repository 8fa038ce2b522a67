"""The webhook of pods: facts are read first, and a slow read does not let an asking pod run in the cluster."""

import asyncio

import msgspec

from skysail.claims.limits.offload_policy import OFFLOAD_POLICY, OffloadPolicy
from skysail.cloud.offers import OfferList
from skysail.cloud.provider import Features
from skysail.cloud.simulated.vendors import VENDORS
from skysail.kinds.offload import placement_webhook
from skysail.kinds.offload.caches import Caches
from skysail.kinds.offload.config import OffloadConfig
from skysail.kinds.offload.observer import PlacementObserver
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import NAMESPACE
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time
from tests.unit.kinds.offload.samples import NODES, NOW, gpu_pod, policy

CONFIG = OffloadConfig(nodes=NODES)


class Offers:
    """Clouds that answer after a while."""

    accounts = frozenset(VENDORS)

    def __init__(self, seconds):
        self.seconds = seconds

    async def offers(self, provider):
        await asyncio.sleep(self.seconds)
        return OfferList(VENDORS[provider].offers, 0.0)

    def outages(self):
        return {}

    def exhausted(self, pod):
        return frozenset()

    def features(self, provider):
        return Features(gang=provider == "modal")

    def unsupported(self, pod, provider):
        return ()


def admit(pod, *, seconds=0.0):
    async def play():
        caches = Caches.create(Cache(OFFLOAD_POLICY.resource, OffloadPolicy), Cache(NAMESPACE, Object))
        caches.policies.put(policy())
        caches.policies.synced.set()
        observer = PlacementObserver(
            Client(ApiModel(World())), caches, CONFIG, Offers(seconds), now=lambda: NOW, clock=lambda: 0.0
        )
        hook = placement_webhook.hooks(observer, CONFIG)[0]
        manifest = msgspec.to_builtins(pod)
        manifest["metadata"]["namespace"] = "default"
        decided = await hook.observe(manifest)
        return decided(manifest, None)

    return {row["path"]: row["value"] for row in virtual_time.run(play()).patch}


def test_webhook_asking_pod_is_placed():
    patch = admit(gpu_pod(annotations={"modal-operator.io/offload": "true"}))
    assert patch["/spec/nodeSelector"] == {"kubernetes.io/hostname": "modal.com"}
    assert "/spec/tolerations" in patch


def test_webhook_slow_read_keeps_asking_pod_off_ordinary_nodes():
    patch = admit(gpu_pod(annotations={"modal-operator.io/offload": "true"}), seconds=60.0)
    assert patch == {"/spec/nodeSelector": {"kubernetes.io/hostname": "modal.com"}}


def test_webhook_slow_read_leaves_other_pod_as_it_is():
    assert admit(gpu_pod(), seconds=60.0) == {}


def test_webhook_operator_without_nodes_has_no_hooks():
    assert placement_webhook.hooks(None, OffloadConfig(nodes={})) == ()


def test_webhook_servers_are_admitted_at_creation_and_update():
    (hook,) = [hook for hook in placement_webhook.hooks(None, CONFIG) if hook.name == "placement-servers"]
    assert {plural for rule in hook.rules for plural in rule["resources"]} == {
        "deployments",
        "replicasets",
        "statefulsets",
    }
    assert all(rule["operations"] == ["CREATE", "UPDATE"] for rule in hook.rules)
    others = [hook for hook in placement_webhook.hooks(None, CONFIG) if hook.name != "placement-servers"]
    assert all(rule["operations"] == ["CREATE"] for hook in others for rule in hook.rules)
