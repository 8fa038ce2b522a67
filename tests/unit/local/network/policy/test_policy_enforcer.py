"""When a new pod may start: its rules are loaded, or nothing can be enforced."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from skysail.cloud.errors import OutcomeUnknown
from skysail.kube.api.objects import Object
from skysail.local.network.policy import nft_ruleset, policy_enforcer
from skysail.local.network.policy.network_policies import NetworkPolicy, Pod
from skysail.local.network.policy.policy_enforcer import LoadFailed, PolicyEnforcer, find_nft
from tests.support import virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
    with pytest.raises(OutcomeUnknown, match="cannot be loaded: no such kernel module"):
        await harness.enforcer.admit("u", "team")
    await harness.enforcer.admit("u", "team")
    assert len(harness.loaded) == 1


async def test_rules_are_loaded_again_after_a_load_with_an_unknown_outcome():
    harness, tried = Harness(), []

    def load(script: str) -> None:
        tried.append(script)
        if len(tried) == 2:
            raise LoadFailed("nft did not end")

    enforcer = harness.enforcer
    enforcer._load = load
    await enforcer.sync()
    enforcer.policies.remove(DENY)
    with pytest.raises(LoadFailed):
        await enforcer.sync()
    enforcer.policies.put(msgspec.structs.replace(DENY, metadata=msgspec.structs.replace(DENY.metadata, uid="new")))
    await enforcer.sync()
    assert len(tried) == 3
    assert tried[0] == tried[2]


def nft(folder: Path, script: str) -> str:
    """Return a folder with a program of that name, first in a search path."""
    program = folder / "nft"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize("word", ["iifname", "timeout", "vmap", "icmp", "sctp", "update"])
def test_a_kernel_that_lacks_a_match_of_our_rules_enforces_nothing(tmp_path, word):
    path = nft(tmp_path, f"if grep -qw {word}; then echo 'not supported' >&2; exit 1; fi")
    assert find_nft(path) is None


def test_a_kernel_that_takes_all_our_rules_enforces_them(tmp_path):
    assert find_nft(nft(tmp_path, f"cat > {tmp_path}/rules")) == f"{tmp_path}/nft"
    lines = (tmp_path / "rules").read_text().splitlines()
    assert nft_ruleset.TABLE not in " ".join(lines)
    assert lines[-1] == "delete table bridge skysail_trial"


def test_a_load_that_does_not_end_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(policy_enforcer, "_LOAD_SECONDS", 0.1)
    with pytest.raises(LoadFailed, match="nft did not end within"):
        policy_enforcer.load(f"{nft(tmp_path, 'exec sleep 600')}/nft", "")
