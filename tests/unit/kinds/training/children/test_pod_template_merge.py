"""A user's pod spec laid over ours: completed by name, and never a traceback."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.kinds.training.children.pod_template_merge import merge

OURS = {
    "containers": [
        {
            "name": "trainer",
            "image": "i",
            "env": [{"name": "FIRST", "valueFrom": {"fieldRef": {}}}, {"name": "RANK", "value": "$(FIRST)"}],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            "resources": {"limits": {"cpu": "1"}},
        }
    ],
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}],
    "priorityClassName": "high",
}


def trainer(**fields):
    return {"containers": [{"name": "trainer", **fields}]}


# (what the user writes, path to what it changes, what is there then)
CASES = {
    "a field is added": ({"serviceAccountName": "me"}, ["serviceAccountName"], "me"),
    "a field is replaced": ({"priorityClassName": "low"}, ["priorityClassName"], "low"),
    "our container is completed": (
        trainer(resources={"limits": {"memory": "1Gi"}}),
        ["containers", 0, "resources", "limits"],
        {"cpu": "1", "memory": "1Gi"},
    ),
    "a sidecar follows": ({"containers": [{"name": "side", "image": "s"}]}, ["containers", 1, "name"], "side"),
    "a variable keeps its place": (
        trainer(env=[{"name": "FIRST", "value": "mine"}]),
        ["containers", 0, "env"],
        [{"name": "FIRST", "value": "mine"}, {"name": "RANK", "value": "$(FIRST)"}],
    ),
    "a new variable comes last": (
        trainer(env=[{"name": "NEW", "value": "$(RANK)"}]),
        ["containers", 0, "env", 2],
        {"name": "NEW", "value": "$(RANK)"},
    ),
    "a volume is replaced whole": (
        {"volumes": [{"name": "data", "emptyDir": {}}]},
        ["volumes"],
        [{"name": "data", "emptyDir": {}}],
    ),
    "mounts are known by their path": (
        trainer(volumeMounts=[{"name": "other", "mountPath": "/data"}, {"name": "data", "mountPath": "/x"}]),
        ["containers", 0, "volumeMounts"],
        [{"name": "other", "mountPath": "/data"}, {"name": "data", "mountPath": "/x"}],
    ),
    "another list is replaced": (
        trainer(args=["a"]),
        ["containers", 0, "args"],
        ["a"],
    ),
}


@pytest.mark.parametrize(("theirs", "path", "there"), CASES.values(), ids=CASES)
def test_what_is_laid_over(theirs, path, there):
    found = merge(OURS, theirs)
    for step in path:
        found = found[step]
    assert found == there


def test_null_takes_a_field_away():
    assert "priorityClassName" not in merge(OURS, {"priorityClassName": None})


def test_nothing_laid_over_changes_nothing():
    assert merge(OURS, {}) == OURS


_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from([*OURS, "env", "name", "volumeMounts"]), inner, max_size=4),
    ),
)


@given(st.dictionaries(st.sampled_from(list(OURS)), _json))
def test_whatever_a_user_writes_is_laid_over(theirs):
    """The API server says what is wrong with it; a traceback of ours would not."""
    found = merge(OURS, theirs)
    removed = {name for name, value in theirs.items() if value is None}
    assert set(found) == set(OURS) - removed
    for name, value in theirs.items():
        if isinstance(value, list):
            assert all(item in found[name] for item in value if not isinstance(item, dict))
        elif value is not None:
            assert found[name] == value
