from datetime import UTC, datetime

import msgspec
import pytest

from skysail.app.kinds import ALL_KINDS, COMPATIBLE_KINDS
from skysail.base.names import LegacyFinalizer
from skysail.core.actions import SetFinalizers
from skysail.kinds.serving.api.types import ML_MODEL
from skysail.kinds.unimplemented.planner import Snapshot, plan
from skysail.kube.api.objects import Meta

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = datetime(2026, 9, 9, tzinfo=UTC)
KINDS = (*ALL_KINDS, *COMPATIBLE_KINDS)


def bare(kind, **metadata):
    """An object of this kind without a spec: the plan reads none."""
    fields = {field.name: field for field in msgspec.structs.fields(kind.struct)}
    return kind.struct(
        metadata=Meta(**{"name": "a", "namespace": "n", "uid": "u", "generation": 4, **metadata}),
        spec=None,
        status=fields["status"].default_factory(),
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource.kind)
def test_the_first_status_says_honestly_that_nothing_happens_yet(kind):
    object_ = bare(kind)
    result = plan(Snapshot(kind, object_, NOW))
    (condition,) = result.status.conditions
    assert (condition.type, condition.status, condition.reason) == ("Accepted", "False", "NotImplementedYet")
    assert kind.resource.kind in condition.message
    assert getattr(result.status, "phase", "Pending") == "Pending"
    assert result.status.observed_generation == 4
    assert result.actions == ()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource.kind)
def test_a_second_look_at_the_same_object_changes_nothing(kind):
    object_ = bare(kind)
    status = plan(Snapshot(kind, object_, NOW)).status
    again = plan(Snapshot(kind, msgspec.structs.replace(object_, status=status), LATER))
    assert again.status == status


def test_an_mlmodel_has_a_legal_status_from_the_first_write():
    status = msgspec.to_builtins(plan(Snapshot(ML_MODEL, bare(ML_MODEL), NOW)).status)
    assert status["phase"] == "Pending"
    assert status["observedGeneration"] == 4


def test_plan_deleted_object_loses_finalizers_of_predecessor_operators():
    finalizers = (*(finalizer.value for finalizer in LegacyFinalizer), "somebody.else/keeps")
    object_ = bare(ML_MODEL, finalizers=finalizers, deletion_timestamp="2026-01-01T00:00:00Z")
    assert plan(Snapshot(ML_MODEL, object_, NOW)).actions == (
        SetFinalizers(ML_MODEL.resource, object_, ("somebody.else/keeps",)),
    )


def test_a_deleted_object_without_such_finalizers_is_left_alone():
    object_ = bare(ML_MODEL, finalizers=("somebody.else/keeps",), deletion_timestamp="2026-01-01T00:00:00Z")
    result = plan(Snapshot(ML_MODEL, object_, NOW))
    assert result.actions == ()
    assert result.status is None
