"""Rows of `skysail get` without a name."""

from datetime import UTC, datetime

import msgspec
import pytest

from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.cli import listing, lookup
from skysail.kinds.serving.api.types import MODEL_DEPLOYMENT, ModelDeployment
from skysail.kinds.training.api.modal_job import ModalJob
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kube.api.objects import Meta, Object
from skysail.kube.client.errors import UNREADABLE, Forbidden, NotServed, ServerFault

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)
MADE = "2026-01-01T00:00:00Z"
MODEL = MODEL_DEPLOYMENT.resource
CLOUD = {"provider": "modal", "usdPerHour": 3.5, "usdTotal": 1.25}
NAME = "a-name-that-is-long-and-must-never-be-cut-in-the-middle"


def job(**status):
    spec = {"framework": "pytorch", "image": "i", "command": ["x"]}
    meta = {"name": NAME, "namespace": "ml", "creationTimestamp": MADE}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status}, TrainingJob)


def model(**status):
    spec = {"modelURI": "https://example.com/m.onnx", "runtime": "triton"}
    meta = {"name": "iris", "namespace": "ml", "creationTimestamp": MADE}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status}, ModelDeployment)


def test_render_shows_phase_progress_and_the_message_of_what_does_not_run():
    rows = [
        listing.row(TRAINING_JOB.resource, job(phase="Running", progress={"percent": 40}, cloud=CLOUD)),
        listing.row(
            MODEL_DEPLOYMENT.resource, model(phase="Ready", replicas=2, readyReplicas=1, message="All is well.")
        ),
        listing.row(MODEL, model(phase="Failed", message="word " * 40)),
        listing.row(
            MODEL_DEPLOYMENT.resource, model(phase="Validating", download={"percent": 7}, message="Downloading.")
        ),
    ]
    header, *lines = [line.split() for line in listing.render(rows, NOW, with_namespace=True, for_terminal=True)]
    assert header == ["NAMESPACE", "KIND", "NAME", "PHASE", "PROGRESS", "COST", "AGE", "MESSAGE"]
    assert lines[0] == ["ml", "TrainingJob", NAME, "Running", "40%", "3.5", "USD/h,", "1.25", "USD", "60m"]
    assert lines[1] == ["ml", "ModelDeployment", "iris", "Ready", "1/2", "ready", "-", "60m"]
    assert lines[2][-1] == "…"
    assert lines[3][3:5] == ["Validating", "7%"]


def test_row_has_the_name_that_kubectl_takes():
    assert listing.row(MODEL, model()).resource == "modeldeployment.mlops.sathvik.dev/iris"


def test_render_for_a_pipe_keeps_whole_messages():
    rows = [listing.row(MODEL, model(phase="Failed", message="word " * 40))]
    assert listing.render(rows, NOW, with_namespace=False)[1].endswith("word")


class Lists:
    """Lists these objects, by kind; other kinds are not served."""

    def __init__(self, **objects):
        self._objects = objects

    async def list_objects(self, resource, _namespace, _query, _type):
        if resource.kind not in self._objects:
            raise NotServed(404, "NotFound", "page not found")
        if isinstance(self._objects[resource.kind], Exception):
            raise self._objects[resource.kind]
        return self._objects[resource.kind]


@pytest.mark.parametrize("group", ["all", "jobs"])
async def test_read_shows_a_modal_job_and_its_training_as_one_row(group):
    owner = {
        "apiVersion": "modal-operator.io/v1alpha1",
        "kind": "ModalJob",
        "name": "hi",
        "uid": "m",
        "controller": True,
    }
    meta = {"name": "hi", "namespace": "ml", "uid": "m"}
    modal_job = msgspec.convert({"metadata": meta, "spec": {"image": "i"}, "status": {"phase": "Failed"}}, ModalJob)
    child_meta = {
        "name": "hi-modaljob",
        "namespace": "ml",
        "uid": "t",
        "ownerReferences": [{**owner, "controller": True}],
    }
    owned = msgspec.structs.replace(
        job(phase="Failed", cloud=CLOUD, progress={"percent": 40}), metadata=msgspec.convert(child_meta, Meta)
    )
    alone = job(phase="Running")
    rows = await listing.read(Lists(ModalJob=[modal_job], TrainingJob=[alone, owned]), listing.GROUPS[group], "")
    assert [(row.kind, row.name, row.progress, row.cost) for row in rows] == [
        ("ModalJob", "hi", "40%", "3.5 USD/h, 1.25 USD"),
        ("TrainingJob", NAME, "", ""),
    ]
    assert rows[0].resource == "modaljob.modal-operator.io/hi"


async def listed(name, **objects):
    found = await listing.read(Lists(**objects), listing.GROUPS[name], "ml")
    return [(row.kind, row.name, row.phase, row.cost) for row in found]


async def test_read_of_one_kind_lists_this_kind_alone():
    assert await listed("md", ModelDeployment=[model(phase="Ready")], TrainingJob=[job()]) == [
        ("ModelDeployment", "iris", "Ready", "")
    ]
    assert [row[0] for row in await listed("trainingjobs", TrainingJob=[job()])] == ["TrainingJob"]


async def test_read_lists_the_claims_of_a_namespace_with_state_and_cost():
    def claim(namespace):
        owner = {"kind": "Pod", "name": "p", "uid": "u", "namespace": namespace}
        status = {"state": "Running", "usdPerHour": 0.8, "usdTotal": 7.2e-05}
        manifest = {"metadata": {"name": f"of-{namespace}"}, "spec": {"provider": "modal", "owner": owner}}
        return msgspec.convert({**manifest, "status": status}, CloudInstance)

    claims = [claim("ml"), claim("other")]
    assert await listed("claims", CloudInstance=claims) == [
        ("CloudInstance", "of-ml", "Running", "0.8 USD/h, 0.000072 USD")
    ]


async def test_read_without_the_right_to_a_kind_shows_the_others_unless_it_was_named():
    forbidden = Forbidden(403, "Forbidden", "no right")
    assert [row[0] for row in await listed("all", ModalJob=forbidden, TrainingJob=[job()])] == ["TrainingJob"]
    for name, objects in (("modaljobs", {"ModalJob": forbidden}), ("jobs", {"TrainingJob": forbidden})):
        with pytest.raises(Forbidden):
            await listed(name, **objects)


async def test_read_names_objects_of_another_system_that_cannot_be_decoded():
    class Unreadable(Lists):
        async def list_objects(self, resource, namespace, query, type_):
            if resource.kind == "TrainJob" and type_ is not Object:
                raise ServerFault(200, UNREADABLE, "The reply cannot be decoded.")
            return await super().list_objects(resource, namespace, query, type_)

    foreign = msgspec.convert({"metadata": {"name": "theirs", "namespace": "ml", "uid": "f"}}, Object)
    rows = await listing.read(Unreadable(TrainJob=[foreign], ModelDeployment=[model()]), listing.GROUPS["all"], "")
    assert [(row.kind, row.name) for row in rows] == [("ModelDeployment", "iris"), ("TrainJob", "theirs")]


@pytest.mark.parametrize("name", ["cloudinstance", "cloudinstances", "ci", "claim", "claims"])
def test_claims_have_the_same_names_in_lists_and_by_name(name):
    assert listing.GROUPS[name] == (CLOUD_INSTANCE,)
    assert any(name in names and resource is CLOUD_INSTANCE.resource for names, resource, _ in lookup._KINDS)
