"""Plan of an OffloadPolicy: names that no cloud has."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skysail.base.names import Condition, Reason
from skysail.claims.plan.policy import PolicySnapshot, plan, rejected
from skysail.cloud.offers import Offer, OfferList
from skysail.core import conditions
from skysail.core.actions import Event
from skysail.kube.api.fields import LabelSelector
from tests.unit.claims.samples import DELETING, NOW, policy

OFFERS = {
    "modal": OfferList((Offer(provider="modal", gpu_type="A100-40GB", aliases=("A100",), usd_per_hour=2.1),), 0.0),
    "runpod": OfferList((Offer(provider="runpod", usd_per_hour=0.1),), 0.0),
}


def seen(of, **fields: Any) -> PolicySnapshot:
    return PolicySnapshot(**{"object": of, "now": NOW, "providers": ("modal", "runpod"), "offers": OFFERS, **fields})


def accepted(snapshot: PolicySnapshot) -> tuple[str, str, str]:
    row = conditions.find_condition(plan(snapshot).status.conditions, Condition.ACCEPTED)
    return row.status, row.reason, row.message


@pytest.mark.parametrize(
    ("spec", "fields", "expected"),
    [
        ({"providers": ("modal",)}, {}, ("True", Reason.ACCEPTED)),
        ({"namespace_selector": LabelSelector(match_labels={"a b": "c"})}, {}, ("False", Reason.INVALID_SPEC)),
        ({"providers": ("modal",), "gpu_types": ("a100",)}, {}, ("True", Reason.ACCEPTED)),
        ({"providers": ("modal", "aws")}, {}, ("True", Reason.UNKNOWN_NAMES)),
        ({"providers": ("aws",)}, {}, ("False", Reason.INVALID_SPEC)),
        ({"providers": ("modal",), "gpu_types": ("A100", "B300")}, {}, ("True", Reason.UNKNOWN_NAMES)),
        ({"providers": ("modal",), "gpu_types": ("B300",)}, {}, ("False", Reason.INVALID_SPEC)),
        ({"providers": ("modal",), "gpu_types": ("B300",)}, {"offers": {}}, ("True", Reason.ACCEPTED)),
        ({"providers": ("modal", "runpod"), "gpu_types": ("A100",)}, {}, ("True", Reason.ACCEPTED)),
        ({"providers": ("runpod",), "gpu_types": ("A100",)}, {}, ("False", Reason.INVALID_SPEC)),
    ],
)
def test_policy_names_what_no_cloud_has(spec, fields, expected):
    of = seen(policy(**spec), **fields)
    assert accepted(of)[:2] == expected
    assert [event.warning for event in plan(of).events] == [True] * (expected[1] != Reason.ACCEPTED)


def test_policy_is_written_once():
    of = seen(policy(providers=("modal", "aws")))
    after = seen(msgspec.structs.replace(of.object, status=plan(of).status))
    assert (plan(after).status, plan(after).events) == (after.object.status, ())
    assert accepted(of)[2] == "No node of this cluster has provider aws: use modal, runpod."


def test_policy_with_many_unknown_names_lists_some():
    names = tuple(f"gpu-{number}" for number in range(20))
    assert "gpu-7 and 12 more" in accepted(seen(policy(providers=("modal",), gpu_types=names)))[2]


def test_policy_being_deleted_is_left_alone():
    of = policy()
    deleting = msgspec.structs.replace(of.metadata, deletion_timestamp=DELETING)
    assert plan(seen(msgspec.structs.replace(of, metadata=deleting))).status is None


def test_policy_rejected_write_is_a_condition_and_an_event():
    event = Event("ReconcileFailed", "No.", warning=True)
    made = rejected(seen(policy()), event)
    row = conditions.find_condition(made.status.conditions, Condition.ACCEPTED)
    assert (row.status, row.reason, made.events) == ("Unknown", "ReconcileFailed", (event,))
