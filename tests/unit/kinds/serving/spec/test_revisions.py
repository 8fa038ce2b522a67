"""The history: equal wants have equal hashes, and what is written is what is read."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.kinds.serving.children import manifests
from skysail.kinds.serving.spec import revisions
from skysail.kinds.serving.spec.desired import RevisionSpec
from skysail.kinds.serving.spec.revisions import ControllerRevision
from tests.unit.kinds.serving.samples import deployment, entry, ml_model, serving

WANT = RevisionSpec(uri="https://a/b", version="v1", runtime="triton", image="i:1")
OURS = {"name": "web-1", "labels": {"skysail.dev/revision": "a"}}
OTHERS = {
    "uri": "https://a/c",
    "version": "v2",
    "runtime": "torchserve",
    "image": "i:2",
    "resources": {"limits": {"cpu": "1"}},
    "env": [{"name": "A", "value": "1"}],
    "script": "validate.py",
    "sha256": "00" * 32,
    "credentials": "keys",
    "offload": {"skysail.dev/offload": "modal"},
    "ready": "/ping",
}


def stored(manifest):
    """As the API server gives it back."""
    return msgspec.json.decode(msgspec.json.encode(manifest), type=ControllerRevision)


@pytest.mark.parametrize(("field", "value"), OTHERS.items())
def test_whatever_makes_another_pod_makes_another_revision(field, value):
    assert revisions.hash_of(msgspec.structs.replace(WANT, **{field: value})) != revisions.hash_of(WANT)


def test_every_field_of_a_want_counts():
    assert OTHERS.keys() == {field.name for field in msgspec.structs.fields(RevisionSpec)}


def test_a_hash_stays_the_same_for_ever():
    """Else a new version of the operator would download every model anew."""
    assert revisions.hash_of(WANT) == "368dfe1d2c"


def test_the_order_of_resources_does_not_count():
    one, two = ({"requests": dict(rows)} for rows in ([("cpu", 1), ("memory", 2)], [("memory", 2), ("cpu", 1)]))
    hashes = {revisions.hash_of(msgspec.structs.replace(WANT, resources=resources)) for resources in (one, two)}
    assert len(hashes) == 1


@pytest.mark.parametrize("model", [deployment(validateScript="a.py"), ml_model()], ids=["md", "mlmodel"])
@pytest.mark.parametrize("outcome", ["", "served", "failed"])
def test_what_is_written_is_what_is_read(model, outcome):
    wanted = serving(model)
    written = msgspec.structs.replace(entry(wanted, 7), outcome=outcome, claim="a-uid")
    read = revisions.from_object(stored(manifests.controller_revision(wanted, written)))
    assert msgspec.structs.replace(read, object=None) == written
    assert read.object.metadata.name == f"{wanted.names.deployment}-{written.hash}"


def test_an_outcome_changes_only_a_label():
    """The server refuses any other change."""
    wanted = serving(deployment())
    before, after = (
        manifests.controller_revision(wanted, msgspec.structs.replace(entry(wanted), outcome=outcome))
        for outcome in ("", "served")
    )
    assert "skysail.dev/outcome" not in before["metadata"]["labels"]
    assert after["metadata"]["labels"].pop("skysail.dev/outcome") == "served"
    assert before == after


@pytest.mark.parametrize(
    "manifest",
    [
        {"metadata": {"name": "web-1"}, "revision": 1, "data": {"spec": {"template": {}}}},
        {"metadata": {"name": "web-1", "labels": {"skysail.dev/revision": "a"}}, "revision": 1},
        {"metadata": {"name": "web-1"}, "revision": 1, "data": {"want": msgspec.to_builtins(WANT)}},
        {"metadata": OURS, "revision": 1, "data": {"want": {**msgspec.to_builtins(WANT), "resources": 3}}},
        {"metadata": OURS, "revision": 1, "data": {"want": {**msgspec.to_builtins(WANT), "runtime": "of tomorrow"}}},
        {"metadata": OURS, "revision": 1, "data": "nonsense"},
    ],
)
def test_a_revision_of_others_or_of_another_skysail_is_none_that_can_be_served(manifest):
    assert revisions.from_object(stored(manifest)) is None


def test_an_outcome_that_nobody_knows_is_none():
    manifest = manifests.controller_revision(serving(deployment()), entry(serving(deployment())))
    manifest["metadata"]["labels"]["skysail.dev/outcome"] = "glorious"
    assert revisions.from_object(stored(manifest)).outcome == ""


@given(st.builds(RevisionSpec, uri=st.text(), version=st.text(), runtime=st.text(), image=st.text(), script=st.text()))
def test_a_hash_is_a_label_and_a_folder(want):
    assert len(revisions.hash_of(want)) == 10
    assert set(revisions.hash_of(want)) <= set("0123456789abcdef")
