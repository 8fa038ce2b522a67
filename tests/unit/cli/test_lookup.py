"""The object that `skysail why` is asked about, and its explanation."""

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.cli import explanations, listing, lookup
from skysail.cli.cluster import Ambiguous, NameMissing, ObjectNotFound
from skysail.cli.commands import why
from skysail.cli.options import NamedOutputFormat
from skysail.kinds.serving.api.types import MODEL_DEPLOYMENT, ModelDeployment
from skysail.kinds.training.api.modal_job import MODAL_JOB, ModalJob
from skysail.kinds.training.api.train_job import TRAIN_JOB
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kube.api.objects import Meta, Object
from skysail.kube.api.resources import POD
from skysail.kube.api.workloads import Job, Pod
from skysail.kube.client.errors import UNREADABLE, Forbidden, ServerFault

META = {"name": "iris", "namespace": "ml", "uid": "u"}
JOB = msgspec.convert({"metadata": META, "spec": {"framework": "pytorch", "image": "i", "command": ["x"]}}, TrainingJob)
FAILURE = {"step": "Download", "reason": "NotFound", "message": "m.onnx not found.", "log": "a\x1b[31m\nb"}
MODEL_SPEC = {"modelURI": "https://example.com/m.onnx", "runtime": "triton"}
MODEL = msgspec.convert(
    {"metadata": META, "spec": MODEL_SPEC, "status": {"phase": "Failed", "message": "No model.", "failure": FAILURE}},
    ModelDeployment,
)
WAITING = {"name": "main", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}
ENDED = {"name": "main", "state": {"terminated": {"exitCode": 3, "reason": "Error", "message": "bye"}}}


def pod(**status: Any) -> Pod:
    return msgspec.convert({"metadata": META, "spec": {"nodeName": "local"}, "status": status}, Pod)


CLAIM = msgspec.convert(
    {
        "metadata": {"name": "iris"},
        "spec": {"provider": "modal", "owner": {"kind": "Pod", "name": "p", "namespace": "ml", "uid": "u"}},
    },
    CloudInstance,
)


class Client:
    """Has these objects, by kind; others do not exist, or may not be read."""

    def __init__(
        self, *objects: tuple[Any, Any], forbids: tuple[str, ...] = (), listed: tuple[tuple[Any, Any], ...] = ()
    ) -> None:
        self._objects = {resource.kind: object_ for resource, object_ in objects}
        self._listed = {resource.kind: [object_] for resource, object_ in listed}
        self._forbids = forbids

    async def find(self, resource: Any, _namespace: str, _name: str, _type: Any) -> Any:
        if resource.kind in self._forbids:
            raise Forbidden(403, "Forbidden", "no")
        return self._objects.get(resource.kind)

    async def list_objects(self, resource: Any, *_: Any) -> list[Any]:
        return self._listed.get(resource.kind, [])


@pytest.mark.parametrize(
    ("desired", "objects", "found"),
    [
        ("iris", [(TRAINING_JOB.resource, JOB), (POD, pod())], JOB),
        ("iris", [(MODEL_DEPLOYMENT.resource, MODEL)], MODEL),
        ("md/iris", [(TRAINING_JOB.resource, JOB), (MODEL_DEPLOYMENT.resource, MODEL)], MODEL),
        ("po/iris", [(TRAINING_JOB.resource, JOB), (POD, pod())], pod()),
        ("claim/iris", [(CLOUD_INSTANCE.resource, CLAIM)], CLAIM),
    ],
)
async def test_find_by_name_or_by_kind_and_name(desired, objects, found):
    assert (await lookup.find(Client(*objects), "ml", desired)).object == found


async def test_find_several_objects_of_one_name_names_each():
    client = Client((TRAINING_JOB.resource, JOB), (MODEL_DEPLOYMENT.resource, MODEL))
    with pytest.raises(Ambiguous, match="trainingjob/iris or modeldeployment/iris"):
        await lookup.find(client, "ml", "iris")


@pytest.mark.parametrize(
    ("desired", "words"),
    [
        ("node/iris", "node is not a kind"),
        ("pod/iris", "Pod iris not found in namespace ml"),
        ("iris", "Object iris not found in namespace ml. `skysail get -A`"),
    ],
)
async def test_find_what_is_not_there_is_said(desired, words):
    with pytest.raises(ObjectNotFound, match=words):
        await lookup.find(Client(), "ml", desired)


@pytest.mark.parametrize(
    ("desired", "words"),
    [
        ("claim/irs", "CloudInstance irs not found. Similar names: iris."),
        ("claim/other", "CloudInstance other not found. `kubectl get cloudinstances` lists what exists."),
        ("irs", "Object irs not found in namespace ml. Similar names: iris."),
    ],
)
async def test_find_object_without_a_namespace_names_none(desired, words):
    with pytest.raises(ObjectNotFound) as caught:
        await lookup.find(Client(listed=((CLOUD_INSTANCE.resource, CLAIM),)), "ml", desired)
    assert str(caught.value) == words


@pytest.mark.parametrize("desired", ["", "pod/", "md/ "])
async def test_find_empty_name_is_a_mistake_in_the_command(desired):
    with pytest.raises(NameMissing, match="The name is empty: write a name, or kind/name") as caught:
        await lookup.find(Client(), "ml", desired)
    assert caught.value.exit_code == 2


async def test_find_kinds_that_may_not_be_read_are_passed_over():
    client = Client((TRAINING_JOB.resource, JOB), forbids=("ModelDeployment", "MLModel", "Pod", "CloudInstance"))
    assert (await lookup.find(client, "ml", "iris")).object == JOB


class Unreadable(Client):
    """TrainJobs of Kubeflow Trainer, which accepts fields that our type does not."""

    async def find(self, resource: Any, namespace: str, name: str, type_: Any) -> Any:
        if resource is TRAIN_JOB.resource and not issubclass(type_, lookup.PartlyRead):
            raise ServerFault(200, UNREADABLE, "The reply cannot be decoded.")
        return await super().find(resource, namespace, name, type_)


async def test_find_object_of_another_project_that_cannot_be_decoded_returns_its_conditions():
    condition = {"type": "Complete", "status": "True", "reason": "Done", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    row = {"metadata": META, "spec": {"new": 1}, "status": {"conditions": [{**condition, "message": "Done."}]}}
    client = Unreadable((TRAIN_JOB.resource, msgspec.convert(row, lookup.PartlyRead)))
    found = await lookup.find(client, "ml", "trainjob/iris")
    assert list(why._parts(why.Facts(found))) == ["ml/iris (TrainJob)", "Complete is True: Done."]
    assert listing.row(found.resource, found.object).resource == "trainjob.trainer.kubeflow.org/iris"


async def test_find_by_name_passes_over_an_object_of_another_project_that_is_absent():
    assert (await lookup.find(Unreadable((POD, pod())), "ml", "iris")).object == pod()


def test_model_explains_the_failure_with_its_log():
    assert list(explanations.model(MODEL)) == [
        "ml/iris: Failed (ModelDeployment, 0 of 0 servers ready)",
        "Why: No model.",
        "Last failure, in step Download: m.onnx not found.",
        "Its last words:",
        "  a",
        "  b",
        "What to do: Correct what the message names; `kubectl describe modeldeployment iris -n ml` shows more.",
    ]


@pytest.mark.parametrize(
    ("status", "line"),
    [
        ({"phase": "Pending", "containerStatuses": [WAITING]}, "Why: Pod iris cannot pull its image: no such image."),
        ({"phase": "Failed", "containerStatuses": [ENDED]}, "Container main failed: Error, exit code 3: bye"),
    ],
)
def test_pod_explains_why_it_does_not_run(status, line):
    assert list(explanations.pod(pod(**status))) == [f"ml/iris: {status['phase']} (Pod on node local)", line]


def test_claim_names_cloud_and_owner():
    assert list(explanations.claim(CLAIM)) == ["iris: not seen yet (claim at modal for Pod ml/p)"]


@pytest.mark.parametrize("kind", lookup._OTHERS, ids=lambda kind: kind.resource.kind)
async def test_every_kind_of_ours_is_found_and_explained(kind):
    found = msgspec.convert({"metadata": META}, Object)
    client = Client((kind.resource, found))
    for desired in ("iris", f"{kind.resource.kind}/iris"):
        assert await lookup.find(client, "ml", desired) == (kind.resource, found, None)


def test_an_object_of_another_kind_is_explained_by_its_conditions():
    condition = SimpleNamespace(type="Ready", status="False", message="No account.")
    status = SimpleNamespace(phase="Pending", conditions=(condition,))
    found = SimpleNamespace(metadata=msgspec.convert(META, Meta), status=status)
    assert list(explanations.other("ModalEndpoint", found)) == [
        "ml/iris: Pending (ModalEndpoint)",
        "Ready is False: No account.",
    ]


def test_why_tells_programs_the_same_as_people():
    found = lookup.Found(MODEL_DEPLOYMENT.resource, MODEL)
    assert why._for_programs(why.Facts(found), NamedOutputFormat.NAME) == "modeldeployment.mlops.sathvik.dev/iris"
    told = json.loads(why._for_programs(why.Facts(found, warnings=["w"]), NamedOutputFormat.JSON))
    assert (told["kind"], told["name"], told["warnings"], told["status"]["phase"]) == (
        "ModelDeployment",
        "iris",
        ["w"],
        "Failed",
    )
    assert "Why: No model." in told["explanation"]


MODAL_META = {"name": "iris", "namespace": "ml", "uid": "m"}
CHILD_META = {
    "name": "iris-modaljob",
    "namespace": "ml",
    "uid": "t",
    "ownerReferences": [
        {"apiVersion": "modal-operator.io/v1alpha1", "kind": "ModalJob", "name": "iris", "uid": "m", "controller": True}
    ],
}
MODAL = msgspec.convert({"metadata": MODAL_META, "spec": {"image": "i"}, "status": {"phase": "Failed"}}, ModalJob)
CHILD = msgspec.structs.replace(JOB, metadata=msgspec.convert(CHILD_META, Meta))


async def test_find_a_modal_job_with_the_training_job_that_runs_it():
    client = Client((MODAL_JOB.resource, MODAL), (TRAINING_JOB.resource, CHILD))
    assert await lookup.find(client, "ml", "modaljob/iris") == (MODAL_JOB.resource, MODAL, CHILD)


async def test_find_a_modal_job_without_the_training_job_of_somebody_else():
    client = Client((MODAL_JOB.resource, MODAL), (TRAINING_JOB.resource, JOB))
    assert (await lookup.find(client, "ml", "modaljob/iris")).training is None


def test_why_explains_a_modal_job_by_the_training_job_that_runs_it():
    failure = {"pod": "p", "role": "worker", "index": 1, "exitCode": 37, "message": "boom"}
    child = msgspec.structs.replace(
        CHILD, status=msgspec.convert({"phase": "Failed", "failure": failure}, type(CHILD.status))
    )
    facts = why.Facts(lookup.Found(MODAL_JOB.resource, MODAL, child))
    lines = json.loads(why._for_programs(facts, NamedOutputFormat.JSON))["explanation"]
    assert lines[0] == "ml/iris: Failed (ModalJob, run by TrainingJob iris-modaljob)"
    assert "  boom" in lines


CRASHED = {
    "name": "main",
    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
    "lastState": {"terminated": {"exitCode": 3, "reason": "Error"}},
}


def test_a_pod_in_a_crash_loop_is_explained_by_its_exit_code_and_log():
    found = pod(phase="Running", containerStatuses=[CRASHED])
    assert list(explanations.pod(found, ["bye"]))[2:] == [
        "Container main failed: Error, exit code 3",
        "Its last log lines:",
        "  bye",
    ]


@pytest.mark.parametrize(
    ("selector", "of_scheduler"),
    [
        ({"kubernetes.io/hostname": "modal.com"}, ""),
        ({}, " Pod iris fits on no node: 0/3 nodes are available. Lower its requests, or free capacity."),
    ],
)
def test_a_pod_that_no_cloud_takes_is_explained_by_the_cloud_and_by_the_scheduler_if_it_may_run_in_the_cluster(
    selector, of_scheduler
):
    rows = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available."},
        {"type": "skysail.dev/Offload", "status": "False", "message": "modal has no GPU Z9."},
    ]
    manifest = {
        "metadata": META,
        "spec": {"nodeSelector": selector},
        "status": {"phase": "Pending", "conditions": rows},
    }
    found = msgspec.convert(manifest, Pod)
    assert list(explanations.pod(found))[1:] == [f"Why: Pod iris: modal has no GPU Z9.{of_scheduler}"]


def test_a_job_of_kubernetes_is_explained_by_its_condition_and_newest_pod():
    row = {"type": "Failed", "status": "True", "message": "Backoff limit reached."}
    found = msgspec.convert({"metadata": META, "status": {"conditions": [row]}}, Job)
    assert list(explanations.job(found, [pod(phase="Failed", containerStatuses=[ENDED])])) == [
        "ml/iris: Failed (Job, 1 pods)",
        "Why: Backoff limit reached.",
        "ml/iris: Failed (Pod on node local)",
        "Container main failed: Error, exit code 3: bye",
    ]
    assert "has no pods" in list(explanations.job(msgspec.convert({"metadata": META}, Job), []))[1]
