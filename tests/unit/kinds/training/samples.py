"""TrainingJobs in few words, and what their pods would find."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import strategies as st

from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kinds.training.children.manifests import build_children
from skysail.node.config.field_values import expand

if TYPE_CHECKING:
    from skysail.kinds.training.api.training_job import LatestCheckpoint

UID = "0b8e2a61-6f3c-4a57-9a53-4f1f1a0f9a11"
OWN_FIELDS = {"metadata.name": "the-pod", "status.podIP": "10.0.0.7"}
FRAMEWORKS = ("pytorch", "tensorflow", "xgboost", "jax")


def job(framework: str = "pytorch", *, name: str = "mnist", **spec: Any) -> TrainingJob:
    """As the API server stores it."""
    metadata = {"name": name, "namespace": "ml-jobs", "uid": UID, "generation": 1}
    spec = {"framework": framework, "image": "team/train:1", "command": ["python", "train.py"], **spec}
    return msgspec.convert({"metadata": metadata, "spec": spec}, TrainingJob)


def rendered(job: TrainingJob, role: str = "worker", number: int = 0, resume: LatestCheckpoint | None = None):
    """The Job of one role."""
    jobs = [manifest for _, manifest in build_children(job, number, resume).jobs]
    return next(row for row in jobs if row["metadata"]["labels"]["trainingjob.ml.example.com/worker"] == role)


def pod(job: TrainingJob, role: str = "worker") -> dict[str, Any]:
    return rendered(job, role)["spec"]["template"]["spec"]


def container(job: TrainingJob, role: str = "worker") -> dict[str, Any]:
    return pod(job, role)["containers"][0]


def environment(
    job: TrainingJob, role: str = "worker", index: int = 0, *, number: int = 0, resume: LatestCheckpoint | None = None
) -> dict[str, str]:
    """What a pod's program finds, after its node has put in what only the node knows."""
    known: dict[str, str] = {}
    spec = rendered(job, role, number, resume)["spec"]["template"]["spec"]
    for variable in spec["containers"][0]["env"]:
        if "value" in variable:
            known[variable["name"]] = expand("", variable["value"], known)
        else:
            path = variable["valueFrom"]["fieldRef"]["fieldPath"]
            known[variable["name"]] = OWN_FIELDS.get(path, str(index))
    return known


def names() -> st.SearchStrategy[str]:
    """Every name that an object may have: labels of DNS, joined by dots, in up to 253 characters."""
    ends = string.ascii_lowercase + string.digits
    middle = st.text(ends + "-", max_size=61)
    label = st.builds("".join, st.tuples(st.sampled_from(ends), middle, st.sampled_from(ends)))
    whole = st.one_of(label, st.sampled_from(ends))
    return st.lists(whole, min_size=1, max_size=4).map(lambda labels: ".".join(labels)[:253].rstrip("-."))


_quantities = st.sampled_from(["1", "500m", 2])
_resources = st.fixed_dictionaries({}, optional={"requests": st.fixed_dictionaries({"cpu": _quantities})})
_role = st.fixed_dictionaries(
    {}, optional={"image": st.just("other:1"), "command": st.just(["serve"]), "resources": _resources}
)
_values = st.one_of(st.text(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans())


@st.composite
def jobs(draw: st.DrawFn) -> TrainingJob:
    """Every job that the API server takes, as far as rendering looks at it."""
    framework, workers = draw(st.sampled_from(FRAMEWORKS)), draw(st.integers(1, 12))
    optional = {
        "gpuPerWorker": st.integers(0, 8),
        "resources": _resources,
        "dataVolume": st.just({"claimName": "mnist-data", "readOnly": True}),
        "checkpointDir": st.sampled_from(["/checkpoints/mnist", "saved"]),
        "checkpoint": st.fixed_dictionaries({}, optional={"gracePeriodSeconds": st.just(60), "claimName": names()}),
        "hyperparameters": st.dictionaries(st.text(), _values, max_size=5),
        "restartPolicy": st.sampled_from(["OnFailure", "Never"]),
        "scheduling": st.just({"priorityClass": "high"}),
        "elastic": st.just({"min": 1, "max": 12}),
        "roles": st.fixed_dictionaries({}, optional=_roles(framework)),
    }
    return job(framework, name=draw(names()), workers=workers, **draw(st.fixed_dictionaries({}, optional=optional)))


def _roles(framework: str) -> dict[str, st.SearchStrategy[Any]]:
    if framework != "tensorflow":
        return {"evaluator": _role}
    servers = st.tuples(_role, st.integers(1, 3)).map(lambda drawn: {**drawn[0], "replicas": drawn[1]})
    return {"evaluator": _role, "chief": _role, "parameterServers": servers}
