from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from skysail.app import crds, manifests
from skysail.cli.clouds.cloud_objects import CloudNode
from skysail.cli.doctor import installation
from skysail.cli.doctor.checks import Outcome
from skysail.cli.doctor.installation import Definition, Role, Webhooks
from skysail.cloud.offers import OfferList
from skysail.kube import certificates
from skysail.kube.api import rbac

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)


def definitions(**changes) -> dict[str, Definition | None]:
    found = {}
    for manifest in manifests.definitions():
        row = msgspec.convert(msgspec.to_builtins(manifest), Definition)
        found[row.metadata.name] = row
    return {**found, **changes}


def webhooks(days: float) -> Webhooks:
    pair = certificates.certificate_authority("ca", now=NOW - timedelta(days=30), valid=timedelta(days=30 + days))
    config = {"caBundle": base64.b64encode(pair.certificate).decode()}
    return msgspec.convert({"metadata": {"name": "skysail"}, "webhooks": [{"clientConfig": config}]}, Webhooks)


def node(account: str = "simulated", **conditions: str) -> CloudNode:
    rows = [{"type": type_, "status": "False", "message": message} for type_, message in conditions.items()]
    info = {"containerRuntimeVersion": f"modal://{account}"}
    return msgspec.convert(
        {"metadata": {"name": "modal.com"}, "status": {"nodeInfo": info, "conditions": rows}}, CloudNode
    )


def test_crds_current_ones_are_ok():
    assert installation.crd_check(definitions()).outcome is Outcome.OK


@pytest.mark.parametrize(
    ("change", "outcome", "word"),
    [
        (None, Outcome.FAILED, "missing: run `skysail crds apply`."),
        ({"metadata": {"name": crds.NAMES[0]}}, Outcome.FAILED, "--take-over"),
        (
            {
                "metadata": {"name": crds.NAMES[0], "labels": {"app.kubernetes.io/managed-by": "skysail"}},
                "spec": {"group": "old"},
            },
            Outcome.WARNING,
            "of another version",
        ),
    ],
)
def test_crds_missing_foreign_or_old_ones_are_named_with_the_fix(change, outcome, word):
    present = definitions(**{crds.NAMES[0]: msgspec.convert(change, Definition) if change else None})
    check = installation.crd_check(present)
    assert check.outcome is outcome
    assert crds.NAMES[0] in check.message
    assert word in check.message


def test_rbac_missing_right_is_named():
    rules = rbac.rules(manifests.cluster_rules())
    role = msgspec.convert({"metadata": {"name": "skysail"}, "rules": rules}, Role)
    assert installation.rbac_check([role, None]).outcome is Outcome.OK
    without = [rule for rule in rules if "pods/binding" not in rule["resources"]]
    less = msgspec.convert({"metadata": {"name": "skysail"}, "rules": without}, Role)
    check = installation.rbac_check([less])
    assert check.outcome is Outcome.FAILED
    assert "create pods/binding" in check.message
    assert installation.rbac_check([None]).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("found", "endpoints", "outcome"),
    [
        (webhooks(300), 2, Outcome.OK),
        (webhooks(300), None, Outcome.OK),
        (webhooks(300), 0, Outcome.FAILED),
        (None, None, Outcome.FAILED),
    ],
)
def test_webhooks_need_a_registration_and_an_endpoint(found, endpoints, outcome):
    assert installation.webhook_check(found, endpoints).outcome is outcome


@pytest.mark.parametrize(("days", "outcome"), [(300, Outcome.OK), (3, Outcome.WARNING), (-1, Outcome.FAILED)])
def test_certificates_are_judged_by_their_end(days, outcome):
    assert installation.certificate_check(webhooks(days), NOW).outcome is outcome


def test_certificates_unreadable_bundle_has_a_fix():
    broken = msgspec.convert(
        {"metadata": {"name": "a"}, "webhooks": [{"clientConfig": {"caBundle": "eA=="}}]}, Webhooks
    )
    check = installation.certificate_check(broken, NOW)
    assert check.outcome is Outcome.FAILED
    assert "delete Secret" in check.message


def test_nodes_each_has_a_line_with_its_problem():
    assert installation.node_checks([node()])[0].outcome is Outcome.OK
    assert "is a stand-in" in installation.node_checks([node("stand-in")])[0].message
    assert "is real" in installation.node_checks([node("account")])[0].message
    down = installation.node_checks([node(CloudReachable="The cloud is down: wait.")])[0]
    assert (down.outcome, down.message) == (Outcome.FAILED, "The cloud is down: wait.")
    assert installation.node_checks([])[0].outcome is Outcome.WARNING


@pytest.mark.parametrize(("days", "outcome"), [(1, Outcome.OK), (100, Outcome.WARNING)])
def test_prices_old_ones_are_a_warning(days, outcome):
    lists = {"modal": OfferList((), (NOW - timedelta(days=days)).timestamp())}
    assert installation.price_check(lists, NOW).outcome is outcome
    assert installation.price_check(None, NOW).outcome is Outcome.WARNING


@pytest.mark.parametrize(
    ("server", "outcome"),
    [(NOW, Outcome.OK), (NOW + timedelta(minutes=2), Outcome.FAILED), (None, Outcome.SKIPPED)],
)
def test_clock_difference_fails(server, outcome):
    assert installation.clock_check(server, NOW).outcome is outcome
