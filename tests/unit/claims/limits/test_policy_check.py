"""The decision table of policies: namespace, provider, GPU, image, region, price, Secrets, instances, automatic."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest

from skysail.base.names import Reason
from skysail.claims.limits.offload_policy import DRAIN_POLICY, Budget, OffloadPolicy, OffloadPolicySpec
from skysail.claims.limits.policy_check import (
    PolicyDecision,
    PolicyQuery,
    check,
    matches_image,
    providers,
)
from skysail.kube.api.fields import LabelSelector, LabelSelectorRequirement
from skysail.kube.api.objects import Meta

EVERY = LabelSelector()
TEAM = LabelSelector(match_labels={"team": "ml"})


def policy(name: str = "default", selector: LabelSelector = EVERY, **fields: Any) -> OffloadPolicy:
    spec = OffloadPolicySpec(namespace_selector=selector, **{"providers": ("modal", "runpod"), **fields})
    return OffloadPolicy(Meta(name=name), spec)


def launch(**fields: Any) -> PolicyQuery:
    known = {
        "namespace": "n",
        "namespace_labels": {"team": "ml"},
        "provider": "modal",
        "gpu_type": "A100-40GB",
        "gpu_aliases": ("A100",),
        "image": "registry.example.com/team/train:1",
        "region": "eu",
        "usd_per_gpu_hour": 2.0,
    }
    return PolicyQuery(**{**known, **fields})


# One value of each field of a policy that allows the launch above, and one that refuses it.
FIELDS: dict[str, tuple[Any, Any]] = {
    "providers": (("modal",), ("runpod",)),
    "gpu_types": (("a100",), ("H100",)),
    "images": (("registry.example.com/team/*",), ("registry.example.com/other/*",)),
    "regions": (("eu", "us"), ("us",)),
    "max_price": (2.0, 1.99),
    "max_instances": (3, 2),
    "allow_secrets": (True, False),
    "automatic": (True, False),
}
TABLE = list(product((True, False), repeat=len(FIELDS)))


@pytest.mark.parametrize("is_allowed", TABLE)
def test_check_every_combination_allows_only_if_each_field_does(is_allowed):
    fields = {
        name: values[0] if good else values[1] for (name, values), good in zip(FIELDS.items(), is_allowed, strict=True)
    }
    decision = check([policy(**fields)], launch(uses_secrets=True, is_automatic=True, instances=2, is_final=True))
    assert decision.allowed is all(is_allowed)
    assert bool(decision.message) is not decision.allowed


@pytest.mark.parametrize(
    ("instances", "size", "reason", "message"),
    [
        (0, 10, "", ""),
        (1, 9, "", ""),
        (1, 10, Reason.INSTANCE_LIMIT_REACHED, "has 1 instances, and OffloadPolicy p allows 10: wait until some end"),
        (0, 11, Reason.POLICY_DENIED, "needs 11 instances, and OffloadPolicy p allows 10: use fewer workers"),
        (3, 11, Reason.POLICY_DENIED, "needs 11 instances"),
    ],
)
def test_check_all_ranks_and_replicas_count_as_instances(instances, size, reason, message):
    decision = check([policy("p", max_instances=10)], launch(instances=instances, size=size))
    assert (decision.allowed, decision.reason) == (not reason, reason)
    assert message in decision.message


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "OffloadPolicy none allows no instances: raise spec.maxInstances."),
        (
            DRAIN_POLICY,
            (
                "`skysail drain` stopped all launches by OffloadPolicy skysail-drain: to allow them again, run"
                " `kubectl delete offloadpolicy skysail-drain`, and `kubectl uncordon` with the nodes of clouds."
            ),
        ),
    ],
)
def test_check_policy_without_instances_asks_nobody_to_wait(name, message, size):
    decision = check([policy(name, max_instances=0)], launch(size=size))
    assert (decision.reason, decision.message) == (Reason.INSTANCE_LIMIT_REACHED, message)


@pytest.mark.parametrize("name", FIELDS)
def test_check_one_policy_of_two_refuses_names_that_policy(name):
    policies = [policy("open", automatic=True), policy("strict", **{"automatic": True, name: FIELDS[name][1]})]
    decision = check(policies, launch(uses_secrets=True, is_automatic=True, instances=2))
    assert not decision.allowed
    assert "OffloadPolicy strict" in decision.message
    assert decision.reason == (Reason.INSTANCE_LIMIT_REACHED if name == "max_instances" else Reason.POLICY_DENIED)


@pytest.mark.parametrize(
    ("policies", "labels", "allowed"),
    [
        ([], {"team": "ml"}, False),
        ([policy()], {}, True),
        ([policy(selector=TEAM)], {"team": "ml"}, True),
        ([policy(selector=TEAM)], {"team": "web"}, False),
        ([policy(selector=TEAM)], {}, False),
        ([policy(selector=TEAM), policy("other", LabelSelector(match_labels={"team": "web"}))], {"team": "ml"}, True),
    ],
)
def test_check_namespace_without_matching_policy_is_refused(policies, labels, allowed):
    decision = check(policies, launch(namespace_labels=labels))
    assert decision.allowed is allowed
    if not allowed:
        assert decision == PolicyDecision(
            allowed=False,
            reason=Reason.POLICY_DENIED,
            message="No OffloadPolicy matches namespace n: create an OffloadPolicy whose namespaceSelector matches it"
            " and whose providers contain modal.",
        )


def test_check_forged_name_label_does_not_match():
    by_name = LabelSelector(match_labels={"kubernetes.io/metadata.name": "other"})
    assert not check(
        [policy(selector=by_name)], launch(namespace_labels={"kubernetes.io/metadata.name": "other"})
    ).allowed
    excluded = LabelSelector(
        match_expressions=(LabelSelectorRequirement("kubernetes.io/metadata.name", "NotIn", ("n",)),)
    )
    assert not check([policy(selector=excluded)], launch(namespace_labels={})).allowed


@pytest.mark.parametrize(
    ("restriction", "unknown"),
    [
        ({"images": ("registry.example.com/*",)}, {"image": ""}),
        ({"regions": ("eu",)}, {"region": ""}),
        ({"max_price": 9.0}, {"usd_per_gpu_hour": None}),
    ],
)
def test_check_unknown_value_is_refused_only_in_the_final_query(restriction, unknown):
    assert check([policy(**restriction)], launch(**unknown)).allowed
    assert not check([policy(**restriction)], launch(**unknown, is_final=True)).allowed
    assert check([policy()], launch(**unknown, is_final=True)).allowed


@pytest.mark.parametrize("is_final", [True, False])
def test_check_launch_without_gpu_ignores_gpu_types(is_final):
    without = launch(gpu_type="", gpu_aliases=(), is_final=is_final)
    assert check([policy(gpu_types=("H100",))], without).allowed


def test_check_gpu_that_the_cloud_chooses_is_refused_if_types_are_limited():
    assert not check([policy(gpu_types=("H100",))], launch(gpu_type="any", gpu_aliases=(), is_final=True)).allowed


def test_check_several_policies_limits_are_the_strictest():
    decision = check(
        [
            policy("a", max_price=3.0, max_duration_seconds=60, gpu_types=("A100", "H100"), regions=("eu", "us")),
            policy("b", max_price=4.0, max_duration_seconds=50, gpu_types=("h100", "a100"), regions=("us", "eu")),
            policy("c", budget=Budget(5.0, "Day"), on_budget_exhausted="Finish"),
            policy("d", budget=Budget(50.0)),
        ],
        launch(),
    )
    assert decision == PolicyDecision(
        allowed=True,
        budgets=(("c", Budget(5.0, "Day")), ("d", Budget(50.0, "Month"))),
        max_lifetime=50,
        max_usd_per_gpu_hour=3.0,
        gpu_types=("A100", "H100"),
        regions=("eu", "us"),
        finish=True,
    )


def test_check_finish_without_budget_has_no_effect():
    assert not check([policy(on_budget_exhausted="Finish")], launch()).finish


def test_check_policies_without_common_region_are_refused():
    decision = check([policy("a", regions=("eu",)), policy("b", regions=("us",)), policy("c")], launch(region=""))
    assert (decision.allowed, decision.reason) == (False, Reason.POLICY_DENIED)
    assert "OffloadPolicies a, b have no region in common" in decision.message


def test_check_policies_with_different_aliases_of_one_gpu_type_are_allowed():
    policies = [policy("a", gpu_types=("A100",)), policy("b", gpu_types=("A100-40GB",))]
    assert check(policies, launch(is_final=True)).allowed
    assert check(policies, launch(gpu_type="")).gpu_types == ("A100",)


@pytest.mark.parametrize(
    ("pattern", "image", "is_match"),
    [
        ("*", "anything:1", True),
        ("python:3.11", "python:3.11", True),
        ("python:*", "python:3.11", True),
        ("python:*", "python", True),
        ("docker.io/library/python:*", "python:3.11", True),
        ("docker.io/library/python:latest", "python", True),
        ("docker.io/org/app:*", "org/app:2", True),
        ("registry.example.com/*", "registry.example.com/a/b@sha256:12", True),
        ("docker.io/*", "registry.example.com/a", False),
        ("docker.io/*", "localhost/a", False),
        ("docker.io/*", "registry:5000/a", False),
        ("registry.example.com/*", "evil.example.com/registry.example.com/a", False),
        ("registry.example.com/a", "registry.example.com/a:1", False),
        ("registry.example.com/a.b", "registry.example.com/axb", False),
        ("a*c", "abbc\n", False),
    ],
)
def test_matches_image_pattern_follows_spelling_of_runtimes(pattern, image, is_match):
    assert matches_image(pattern, image) is is_match


@pytest.mark.parametrize(
    ("policies", "allowed"),
    [
        ([], ()),
        ([policy()], ("modal", "runpod")),
        ([policy(), policy("extra", providers=("runpod", "modal", "x"))], ("modal", "runpod")),
        ([policy(), policy("extra", providers=("x",))], ()),
        ([policy(), policy("b", LabelSelector(match_labels={"team": "web"}), providers=("x",))], ("modal", "runpod")),
    ],
)
def test_providers_of_several_policies_are_the_common_ones(policies, allowed):
    assert providers(policies, "n", {"team": "ml"}) == allowed


def test_decision_is_plain_data():
    decision = check([policy(budget=Budget(1.0))], launch())
    assert msgspec.convert(msgspec.to_builtins(decision), PolicyDecision) == decision


@pytest.mark.parametrize(
    ("patterns", "is_allowed"),
    [
        ((), False),
        (("runpod/template/abc",), True),
        (("runpod/template/*",), True),
        (("runpod/*",), True),
        (("runpod/template/ab",), False),
        (("runpod/registry/abc",), False),
    ],
)
def test_check_object_of_the_account_needs_a_pattern(patterns, is_allowed):
    query = launch(account_objects=("runpod/template/abc",), is_final=True)
    decision = check([policy(account_objects=patterns)], query)
    assert decision.allowed is is_allowed
    assert is_allowed or "add it to spec.accountObjects" in decision.message
    assert check([policy()], launch(is_final=True)).allowed
