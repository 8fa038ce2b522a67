"""Manifests of `skysail train`."""

import msgspec
import pytest
import yaml

from skysail.cli.train import manifests, submission
from skysail.cli.train.code import Code
from skysail.cli.train.manifests import Settings
from skysail.kinds.training.admission import validation
from skysail.kinds.training.api.training_job import TrainingJob

CODE = Code({"train.py": b"print(1)\n"}, "train.py")
SETTINGS = Settings(name="mnist", namespace="ml", image="skysail-train:1", framework="pytorch")


def test_training_job_is_valid_and_has_every_wish():
    settings = msgspec.structs.replace(
        SETTINGS, workers=3, gpus=2, retries=5, env={"A": "1"}, args=("--lr", "0.1"), checkpoint_dir="/checkpoints"
    )
    job = msgspec.convert(manifests.training_job(settings, CODE), TrainingJob)
    assert (job.spec.workers, job.spec.gpu_per_worker, job.spec.args) == (3, 2, ("--lr", "0.1"))
    assert (job.spec.run_policy.backoff_limit, job.spec.restart_policy) == (5, "OnFailure")
    assert job.spec.command[-1] == "train.py"
    assert validation.validate(job) == ()


def test_training_job_without_retries_fails_at_once():
    assert manifests.training_job(SETTINGS, CODE)["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("Train_MNIST.py", "train-mnist"),
        ("__main__.py", "main"),
        ("3d.py", "train-3d"),
        ("é.py", "train"),
        ("x" * 99, "x" * 50),
    ],
)
def test_job_name_is_valid_for_every_script(script, name):
    assert manifests.job_name(script) == name


@pytest.mark.parametrize(
    ("packages", "text", "framework"),
    [
        (("torch", "numpy"), "", "pytorch"),
        (("tensorflow-cpu",), "", "tensorflow"),
        (("jax[cpu]>=0.4",), "", "jax"),
        ((), "import xgboost as xgb\n", "xgboost"),
        ((), "x = 'import jaxon'\nfrom jaxtyping import Float\n", "pytorch"),
        ((), "", "pytorch"),
    ],
)
def test_guess_framework_by_packages_or_imports(packages, text, framework):
    assert manifests.guess_framework(packages, text) == framework


def test_as_yaml_can_be_applied_and_read_by_people():
    documents = (manifests.config_map(SETTINGS, CODE), manifests.training_job(SETTINGS, CODE))
    text = manifests.as_yaml(*documents)
    assert list(yaml.safe_load_all(text)) == list(documents)
    assert "  train.py: |\n    print(1)\n" in text


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ({"phase": "Succeeded"}, 0),
        ({"phase": "Failed", "failure": {"role": "worker", "exitCode": 37}}, 37),
        ({"phase": "Failed", "failure": {"role": "worker"}}, 1),
        ({"phase": "Failed"}, 1),
        (None, 1),
    ],
)
def test_exit_code_is_the_one_of_the_failed_program(status, code):
    manifest = {**manifests.training_job(SETTINGS, CODE), "status": status}
    job = None if status is None else msgspec.convert(manifest, TrainingJob)
    assert submission.exit_code(job) == code
