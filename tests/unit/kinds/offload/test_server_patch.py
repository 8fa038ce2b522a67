"""Patches and warnings of Deployments, ReplicaSets and StatefulSets that ask for a cloud."""

import copy

import pytest

from skysail.kinds.offload.admission import server_patch

MODAL = {"skysail.dev/offload": "modal"}
RUNPOD = {"skysail.dev/offload": "runpod"}
KINDS = ("Deployment", "ReplicaSet", "StatefulSet")


def server(annotations=None, own=None, *, kind="Deployment", image="nginx", **metadata):
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "a", "image": image}]}}
    if own:
        template["metadata"]["annotations"] = own
    return {
        "kind": kind,
        "metadata": {"name": "web", "annotations": annotations or {}, **metadata},
        "spec": {"replicas": 1, "template": template},
    }


def values(response):
    return {row["path"]: row["value"] for row in response.patch}


@pytest.mark.parametrize("kind", KINDS)
def test_admit_new_server_copies_annotations_to_its_pods(kind):
    response = server_patch.admit(server({**MODAL, "other": "x"}, {"mine": "1"}, kind=kind), None)
    assert values(response) == {"/spec/template/metadata/annotations": {"mine": "1", **MODAL}}
    assert response.warnings == ()


def test_admit_template_that_asks_itself_is_kept():
    assert server_patch.admit(server(MODAL, RUNPOD), None).patch == ()


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_admit_annotation_added_later_does_not_replace_running_pods(kind):
    response = server_patch.admit(server(MODAL, kind=kind), server(kind=kind))
    assert response.patch == ()
    assert response.warnings == (
        (
            f"Running pods of {kind} web are not replaced for skysail.dev/offload: to move them, run `kubectl rollout"
            f" restart {kind.lower()}/web`."
        ),
    )


def test_admit_annotation_added_later_reaches_new_pods_of_replica_set():
    response = server_patch.admit(server(MODAL, kind="ReplicaSet"), server(kind="ReplicaSet"))
    assert (values(response), response.warnings) == ({"/spec/template/metadata/annotations": MODAL}, ())


def test_admit_changed_template_gets_the_annotations():
    response = server_patch.admit(server(MODAL, image="nginx:2"), server(MODAL))
    assert (values(response), response.warnings) == ({"/spec/template/metadata/annotations": MODAL}, ())


def test_admit_replaced_manifest_keeps_the_copy_and_so_the_running_pods():
    patched = values(server_patch.admit(server(MODAL), old=server(MODAL, MODAL)))
    assert patched == {"/spec/template/metadata/annotations": MODAL}


def test_admit_scaled_server_is_left_alone_without_a_warning():
    old = server(MODAL)
    new = copy.deepcopy(old)
    new["spec"]["replicas"] = 5
    response = server_patch.admit(new, old)
    assert (response.patch, response.warnings) == ((), ())


@pytest.mark.parametrize("new", [RUNPOD, {}])
def test_admit_changed_annotation_warns_that_the_template_wins(new):
    response = server_patch.admit(server(new, MODAL), server(MODAL, MODAL))
    assert response.patch == ()
    assert response.warnings == (
        (
            "The pod template of Deployment web has skysail.dev/offload: modal, which wins: change"
            " spec.template.metadata.annotations, too."
        ),
    )


def test_admit_server_with_a_controller_is_left_to_it():
    owner = {"kind": "InferenceService", "name": "i", "controller": True}
    assert server_patch.admit(server(MODAL, ownerReferences=[owner]), None).patch == ()


@pytest.mark.parametrize("manifest", [{}, {"spec": None}, {"spec": {"template": None}}])
def test_admit_incomplete_manifest_is_left_to_the_api_server(manifest):
    assert server_patch.admit(manifest, None).patch == ()
