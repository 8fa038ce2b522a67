"""Patches of Jobs and CronJobs at their creation."""

import pytest

from skysail.kinds.offload.admission import job_patch

ASK = {"runpod.io/managed": "true", "runpod.io/offload": "true", "runpod.io/required-gpu-memory": "16"}
POLICY = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}
admit = job_patch.admit_job(frozenset())


def job(annotations=None, template_metadata=None, *, restart_policy="Never", **spec):
    template = {"spec": {"restartPolicy": restart_policy, "containers": [{"name": "a", "image": "b"}]}}
    if template_metadata is not None:
        template["metadata"] = template_metadata
    return {
        "metadata": {"name": "my-gpu-job", "annotations": annotations or {}},
        "spec": {"template": template, **spec},
    }


def values(response):
    return {row["path"]: row["value"] for row in response.patch}


def test_admit_job_copies_annotations_and_ignores_disruptions():
    patch = values(admit(job({**ASK, "other": "x"}), None))
    assert patch == {
        "/spec/template/metadata": {"annotations": ASK},
        "/spec/podFailurePolicy": POLICY,
        "/spec/podReplacementPolicy": "Failed",
    }


def test_admit_job_keeps_annotations_of_template():
    metadata = {"labels": {"a": "b"}, "annotations": {"own": "1", "runpod.io/required-gpu-memory": "80"}}
    patch = values(admit(job(ASK, metadata), None))
    assert patch["/spec/template/metadata/annotations"] == {**ASK, "own": "1", "runpod.io/required-gpu-memory": "80"}


def test_admit_job_twice_changes_nothing():
    first = values(admit(job(ASK, {"labels": {"a": "b"}}), None))
    again = job(ASK, {"labels": {"a": "b"}, "annotations": first["/spec/template/metadata/annotations"]})
    again["spec"]["podFailurePolicy"] = first["/spec/podFailurePolicy"]
    assert admit(again, None).patch == ()


@pytest.mark.parametrize(
    "manifest",
    [
        job(ASK, restart_policy="OnFailure"),
        job(ASK, podFailurePolicy={"rules": []} | POLICY),
        job({"runpod.io/managed": "true"}),
    ],
)
def test_admit_job_failure_policy_only_for_asking_job_without_one(manifest):
    assert "/spec/podFailurePolicy" not in values(admit(manifest, None))


def test_admit_job_label_counts_as_annotation():
    manifest = job()
    manifest["metadata"]["labels"] = {"runpod.io/managed": "true"}
    assert values(admit(manifest, None)) == {"/spec/template/metadata": {"annotations": {"runpod.io/managed": "true"}}}


def test_admit_job_of_excluded_owner_is_left_alone():
    manifest = job(ASK)
    manifest["metadata"]["ownerReferences"] = [{"kind": "Trial", "name": "t"}]
    assert job_patch.admit_job(frozenset({"Trial"}))(manifest, None).patch == ()


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [(ASK, {"/spec/template/metadata": {"annotations": ASK}}), ({}, {})],
    ids=["asks", "plain"],
)
def test_admit_job_of_job_set_copies_its_own_annotations_only(annotations, expected):
    """The owners of the Job are read when its pods are placed, so a request on the TrainJob need not be copied."""
    manifest = job(annotations, restart_policy="OnFailure")
    manifest["metadata"]["ownerReferences"] = [{"kind": "JobSet", "name": "t", "controller": True}]
    assert values(admit(manifest, None)) == expected


def test_admit_cron_job_copies_annotations_to_pods():
    cron_job = {"metadata": {"annotations": ASK}, "spec": {"jobTemplate": {"spec": job()["spec"]}}}
    patch = values(job_patch.admit_cron_job(cron_job, None))
    assert patch == {
        "/spec/jobTemplate/spec/template/metadata": {"annotations": ASK},
        "/spec/jobTemplate/spec/podFailurePolicy": POLICY,
        "/spec/jobTemplate/spec/podReplacementPolicy": "Failed",
    }


@pytest.mark.parametrize("manifest", [{}, {"spec": None}, {"spec": {"jobTemplate": {}}}])
def test_admit_incomplete_manifest_is_left_to_the_api_server(manifest):
    assert admit(manifest, None).patch == ()
    assert job_patch.admit_cron_job(manifest, None).patch == ()
