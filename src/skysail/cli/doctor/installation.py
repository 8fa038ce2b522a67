"""Judgements about an installation in a cluster, from what was read there. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from cryptography import x509

from skysail.app import crds, manifests
from skysail.base.names import ACCOUNT_REAL, ACCOUNT_STAND_IN, Condition
from skysail.cli.clouds.cloud_objects import CloudNode
from skysail.cli.doctor.checks import Check, Outcome
from skysail.cloud.offers import OfferList
from skysail.kube.admission.registration import covers
from skysail.kube.api import rbac
from skysail.kube.api.objects import Object

_APPLY_CRDS = "run `skysail crds apply`"
_UPGRADE = "run `helm upgrade`, or `kubectl apply -f config/rbac/role.yaml`"
_MAX_NAMES = 3
_MAX_SKEW = timedelta(seconds=30)
_SOON = timedelta(days=7)
_OLD_PRICES = timedelta(days=90)
# What the doctor calls an account, if that differs from the node's own word.
_ACCOUNTS = {ACCOUNT_REAL: "real", ACCOUNT_STAND_IN: "a stand-in, which costs nothing"}


class Definition(Object, frozen=True, gc=False):
    """A CRD as it is in the cluster."""

    spec: Any = None


class Role(Object, frozen=True, gc=False):
    rules: tuple[dict[str, Any], ...] = ()


class Webhooks(Object, frozen=True, gc=False):
    """The MutatingWebhookConfiguration of the operator."""

    webhooks: tuple[dict[str, Any], ...] = ()


def crd_check(present: Mapping[str, Definition | None]) -> Check:
    """Judge the CRDs: all there, ours, and of this version."""
    missing = [name for name, found in present.items() if found is None]
    if missing:
        return Check("crds", Outcome.FAILED, f"{_names(missing)} missing: {_APPLY_CRDS}.")
    foreign = [name for name, found in present.items() if found is not None and not crds.is_ours(found)]
    if foreign:
        message = f"{_names(foreign)} not installed by Skysail: run `skysail crds apply --take-over` to replace them."
        return Check("crds", Outcome.FAILED, message)
    desired = {row["metadata"]["name"]: msgspec.to_builtins(row["spec"]) for row in manifests.definitions()}
    other = [name for name, found in present.items() if found is not None and not covers(found.spec, desired[name])]
    if other:
        return Check("crds", Outcome.WARNING, f"{_names(other)} of another version: {_APPLY_CRDS}.")
    return Check("crds", Outcome.OK, f"{len(present)} CRDs are current.")


def rbac_check(roles: Iterable[Role | None]) -> Check:
    """Judge the operator's ClusterRoles: everything that the code declares is granted."""
    found = [role for role in roles if role is not None]
    if not found:
        return Check("rbac", Outcome.FAILED, f"ClusterRole {manifests.NAME} missing: {_UPGRADE}.")
    granted = {right for role in found for right in _rights(role.rules)}
    declared = set(_rights(rbac.rules(manifests.cluster_rules())))
    missing = sorted(f"{verb} {resource}" for _, resource, verb, _ in declared - granted)
    if missing:
        return Check("rbac", Outcome.FAILED, f"The operator may not {_names(missing)}: {_UPGRADE}.")
    return Check("rbac", Outcome.OK, f"The operator has its {len(declared)} rights.")


def webhook_check(webhooks: Webhooks | None, ready_endpoints: int | None) -> Check:
    """Judge the webhooks. `ready_endpoints` is None if they are reached by URL, without a Service."""
    if webhooks is None or not webhooks.webhooks:
        message = "No webhook is registered: GPU pods with requests only are refused. Look at the operator's log."
        return Check("webhooks", Outcome.FAILED, message)
    if ready_endpoints == 0:
        message = (
            "The webhooks' Service has no ready endpoint: `kubectl get pods -l control-plane=controller-manager -A`."
        )
        return Check("webhooks", Outcome.FAILED, message)
    return Check("webhooks", Outcome.OK, f"{len(webhooks.webhooks)} webhooks are registered.")


def certificate_check(webhooks: Webhooks | None, now: datetime) -> Check:
    """Judge the authority of the webhooks, which the operator renews by itself."""
    bundles = [row.get("clientConfig", {}).get("caBundle", "") for row in (webhooks.webhooks if webhooks else ())]
    if not bundles:
        return Check("certificates", Outcome.SKIPPED, "No webhook is registered.")
    try:
        ends = min(
            certificate.not_valid_after_utc
            for bundle in bundles
            for certificate in x509.load_pem_x509_certificates(base64.b64decode(bundle))
        )
    except (ValueError, binascii.Error):
        message = (
            "The CA of the webhooks is unreadable: delete Secret skysail-webhook, and the operator makes a new one."
        )
        return Check("certificates", Outcome.FAILED, message)
    if ends < now + _SOON:
        message = f"The CA of the webhooks ends at {ends:%Y-%m-%d %H:%M}: is an operator running, which renews it?"
        return Check("certificates", Outcome.FAILED if ends < now else Outcome.WARNING, message)
    return Check("certificates", Outcome.OK, f"The CA of the webhooks is valid until {ends:%Y-%m-%d}.")


def node_checks(nodes: Iterable[CloudNode]) -> list[Check]:
    """Judge the nodes of clouds, one check for each."""
    rows = []
    for node in nodes:
        name = f"node {node.metadata.name}"
        problems = [
            message
            for type_ in ("Ready", Condition.CLOUD_REACHABLE, Condition.NO_ORPHANED_INSTANCES)
            if (message := node.problem(type_))
        ]
        if problems:
            rows.append(Check(name, Outcome.FAILED, " ".join(problems)))
        else:
            rows.append(
                Check(
                    name, Outcome.OK, f"The account at {node.provider} is {_ACCOUNTS.get(node.account, node.account)}."
                )
            )
    if not rows:
        message = "No cloud is connected: create the Secret with its credentials, see docs/clouds.md."
        rows.append(Check("nodes", Outcome.WARNING, message))
    return rows


def price_check(lists: Mapping[str, OfferList] | None, now: datetime) -> Check:
    """Judge the published offers."""
    if not lists:
        return Check("prices", Outcome.WARNING, "No prices are published: no cloud is connected, or no operator leads.")
    ages = {provider: now - datetime.fromtimestamp(listed.at, UTC) for provider, listed in lists.items()}
    old = [f"{provider} ({age.days} days)" for provider, age in ages.items() if age > _OLD_PRICES]
    if old:
        message = f"Prices are unchanged for long at {_names(old)}: compare them with the cloud's own."
        return Check("prices", Outcome.WARNING, message)
    return Check("prices", Outcome.OK, f"Prices of {', '.join(sorted(lists))} are published.")


def clock_check(server_time: datetime | None, now: datetime) -> Check:
    """Judge the difference between this clock and the API server's."""
    if server_time is None:
        return Check("clock", Outcome.SKIPPED, "The API server does not say its time.")
    skew = abs(now - server_time)
    if skew > _MAX_SKEW:
        message = f"The clocks here and at the API server differ by {skew.total_seconds():.0f} s: run NTP on both."
        return Check("clock", Outcome.FAILED, message)
    return Check("clock", Outcome.OK, "The clocks here and at the API server agree.")


def _rights(rules: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, str, tuple[str, ...]]]:
    return [
        (group, resource, verb, tuple(rule.get("resourceNames") or ()))
        for rule in rules
        for group in rule.get("apiGroups") or ()
        for resource in rule.get("resources") or ()
        for verb in rule.get("verbs") or ()
    ]


def _names(names: Iterable[str]) -> str:
    """Join names in a sentence, and cut a long list."""
    found = sorted(names)
    first, rest = found[:_MAX_NAMES], len(found) - _MAX_NAMES
    if rest > 0:
        return f"{', '.join(first)} and {rest} more"
    return " and ".join(first)
