"""When a new pod may start: its rules are loaded, or nothing can be enforced."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from skysail.cloud.errors import OutcomeUnknown
from skysail.kube.api.objects import Object
from skysail.local.network.policy.network_policies import NetworkPolicy, Pod
from skysail.local.network.policy.policy_enforcer import LoadFailed, PolicyEnforcer
from tests.support import virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from skysail.kube.client.client import Client

DENY = msgspec.convert(
    {"metadata": {"name": "deny", "namespace": "team", "resourceVersion": "1"}, "spec": {"policyTypes": ["Ingress"]}},
    NetworkPolicy,
)
POD = msgspec.convert({"metadata": {"name": "web", "namespace": "team", "uid": "u", "resourceVersion": "2"}}, Pod)
TEAM = msgspec.convert({"metadata": {"name": "team", "resourceVersion": "3"}}, Object)
ADDRESS = "10.244.0.3"


class Harness:
    """An enforcer whose caches the test fills."""

    def __init__(self, *, policies: bool = True, pods: bool = True, namespaces: bool = True) -> None:
        self.loaded: list[str] = []
        self.enforcer = self.make(self.loaded.append)
        if policies:
            self.enforcer.policies.put(DENY)
        self.enforcer.policies.synced.set()
        if pods:
            self.enforcer.pods.put(POD)
        self.enforcer.pods.synced.set()
        if namespaces:
            self.enforcer.namespaces.put(TEAM)
            self.enforcer.namespaces.synced.set()

    @staticmethod
    def make(load: Callable[[str], None] | None) -> PolicyEnforcer:
        client, rng = cast("Client", None), random.Random(0)
        return PolicyEnforcer(client, lambda: {"u": ADDRESS}, rng, proxy_port=3128, outer_port=3129, load=load)


async def test_a_pod_starts_when_its_rules_are_loaded():
    harness = Harness()
    await harness.enforcer.admit("u", "team")
    assert [ADDRESS in script for script in harness.loaded] == [True]


def test_a_pod_without_policies_starts_at_once_even_if_the_api_server_has_not_shown_it():
    harness = Harness(policies=False, pods=False)
    virtual_time.run(harness.enforcer.admit("u", "team"))
    assert harness.loaded == []


def test_a_pod_starts_where_nothing_can_be_enforced():
    virtual_time.run(Harness.make(None).admit("u", "team"))


@pytest.mark.parametrize("missing", ["pods", "namespaces"])
def test_a_pod_does_not_start_before_the_api_server_has_shown_what_its_rules_need(missing):
    harness = Harness(**{missing: False})
    with pytest.raises(OutcomeUnknown, match="not known yet: it waits for the API server"):
        virtual_time.run(harness.enforcer.admit("u", "team"))
    assert harness.loaded == []


async def test_a_pod_does_not_start_if_its_rules_cannot_be_loaded_and_starts_when_they_can():
    harness, answers = Harness(), iter([LoadFailed("no such kernel module"), None])

    def load(script: str) -> None:
        if error := next(answers):
            raise error
        harness.loaded.append(script)

    harness.enforcer._load = load
    with pytest.raises(OutcomeUnknown, match="cannot be loaded: nft printed 'no such kernel module'"):
        await harness.enforcer.admit("u", "team")
    await harness.enforcer.admit("u", "team")
    assert len(harness.loaded) == 1
