"""TrainingJob of a TrainJob without Kubeflow Trainer."""

import msgspec
import pytest
import yaml

from skysail.kinds.training.admission.validation import validate
from skysail.kinds.training.api.train_job import TrainJob
from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kinds.training.children import train_job
from tests.support.documents import ROOT

GPU = {"requests": {"nvidia.com/gpu": 1}}
CONTAINER = {"name": "trainer", "resources": GPU}
SPELLINGS = {
    "podSpecOverrides": [{"targetJobs": ["trainer-node"], "containers": [CONTAINER]}],
    "podTemplateOverrides": [{"targetJobs": [{"name": "node"}], "spec": {"containers": [CONTAINER]}}],
    "runtimePatches": [
        {
            "manager": "me",
            "trainingRuntimeSpec": {
                "template": {
                    "spec": {
                        "replicatedJobs": [
                            {"name": "node", "template": {"spec": {"template": {"spec": {"containers": [CONTAINER]}}}}}
                        ]
                    }
                }
            },
        }
    ],
}


def job(runtime: str = "modal-pytorch-runtime", annotations=None, **spec) -> TrainJob:
    metadata = {"name": "t", "namespace": "n", "uid": "u", "annotations": annotations or {}}
    return msgspec.convert({"metadata": metadata, "spec": {"runtimeRef": {"name": runtime}, **spec}}, TrainJob)


def child(of: TrainJob) -> TrainingJob:
    made = msgspec.convert(train_job.training_job(of, "print('hi')"), TrainingJob)
    assert validate(made) == ()
    return made


@pytest.mark.parametrize("spelling", list(SPELLINGS))
def test_every_spelling_of_overrides_is_read(spelling):
    assert child(job(**{spelling: SPELLINGS[spelling]})).spec.gpu_per_worker == 1


def test_overrides_of_initializers_do_not_count():
    rows = [{"targetJobs": ["dataset-initializer"], "containers": [CONTAINER]}]
    assert child(job(podSpecOverrides=rows)).spec.gpu_per_worker == 0


def job_of_seed() -> TrainJob:
    manifest = yaml.safe_load((ROOT / "config/samples/trainer_v1alpha1_trainjob.yaml").read_text())
    return msgspec.convert(manifest, TrainJob)


def test_the_manifest_of_the_seed_trains_at_modal_with_the_shipped_program():
    made = child(job_of_seed())
    assert made.spec.command == ("python", "-m", "torch.distributed.run")
    assert made.spec.args == ("--nproc_per_node=2", "train.py")
    assert (made.spec.gpu_per_worker, made.spec.image) == (1, "pytorch/pytorch:latest")
    assert made.metadata.annotations["skysail.dev/offload"] == "modal"
    template = made.spec.pod_template
    container = template.spec["containers"][0]
    assert container["workingDir"] == "/workspace"
    assert {row["name"]: row["value"] for row in container["env"]} == {"PYTHONPATH": "/workspace"}
    assert template.metadata.annotations["skysail.dev/train-script"] == "print('hi')"


def test_an_own_image_keeps_its_workspace():
    made = child(job(trainer={"image": "mine", "command": ["python", "mine.py"]}))
    assert made.spec.image == "mine"
    assert "volumes" not in made.spec.pod_template.spec


def test_nodes_processes_resources_and_deadline():
    trainer = {"numNodes": 3, "numProcPerNode": 2, "resourcesPerNode": {"limits": {"cpu": "2", "nvidia.com/gpu": 2}}}
    made = child(job(trainer=trainer, activeDeadlineSeconds=60, suspend=True))
    assert (made.spec.workers, made.spec.gpu_per_worker, made.spec.suspend) == (3, 2, True)
    assert made.spec.resources.limits == {"cpu": "2"}
    assert made.spec.run_policy.active_deadline_seconds == 60
    assert {"name": "PET_NPROC_PER_NODE", "value": "2"} in made.spec.pod_template.spec["containers"][0]["env"]


@pytest.mark.parametrize(
    ("runtime", "trainer", "provider"),
    [
        ("modal-pytorch-runtime", {}, "modal"),
        ("torch-distributed", {"command": ["x"]}, None),
        ("torch-distributed", {"command": ["x"], "env": [{"name": "MODAL_ENABLED", "value": "true"}]}, "modal"),
        ("torch-distributed", {"command": ["x"], "env": [{"name": "MODAL_ENABLED", "value": "false"}]}, None),
    ],
)
def test_runtime_or_variable_ask_for_modal(runtime, trainer, provider):
    assert (child(job(runtime, trainer=trainer)).metadata.annotations or {}).get("skysail.dev/offload") == provider


@pytest.mark.parametrize(
    ("of", "word"),
    [
        (job("unknown-runtime"), "runtimeRef"),
        (job(initializer={"dataset": {"storageUri": "hf://x"}}), "initializer"),
        (job("torch-distributed"), "command"),
    ],
)
def test_what_needs_trainer_is_refused_with_the_fix(of, word):
    assert any(word in sentence for sentence in train_job.errors(of.spec))
    assert train_job.errors(job().spec) == ()


def test_the_runtime_for_trainer_has_the_shipped_program():
    runtime = yaml.safe_load((ROOT / "config/runtimes/modal-pytorch-runtime.yaml").read_text())
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    template = job["template"]["spec"]["template"]
    shipped = (ROOT / "src/skysail/runtimes/modal_pytorch/train.py").read_text()
    assert template["metadata"]["annotations"]["skysail.dev/train-script"].strip() == shipped.strip()
    made = train_job.training_job(job_of_seed(), shipped)
    assert job_of_seed().spec.runtime_ref.name == runtime["metadata"]["name"]
    ours, theirs = made["spec"]["podTemplate"]["spec"], template["spec"]
    assert ours["volumes"] == theirs["volumes"]
