"""TrainingJob of a ModalJob."""

import msgspec
import pytest

from skysail.cloud.modal.gangs.arguments import LIMITS
from skysail.kinds.training.admission.validation import validate
from skysail.kinds.training.api.modal_job import ModalJob
from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kinds.training.children import modal_job
from skysail.kinds.training.children.manifests import build_children


def job(name: str = "hello", **spec) -> ModalJob:
    return msgspec.convert(
        {"metadata": {"name": name, "namespace": "n", "uid": "u"}, "spec": {"image": "i", **spec}}, ModalJob
    )


def child(**spec) -> TrainingJob:
    return msgspec.convert(modal_job.training_job(job(**spec)), TrainingJob)


def container(**spec) -> dict:
    made = child(**spec)
    (_, manifest), *_ = build_children(made, 0, None).jobs
    found: dict = manifest["spec"]["template"]["spec"]["containers"][0]
    return found


@pytest.mark.parametrize(
    ("gpu", "count", "type_"),
    [(None, 0, None), ("", 0, None), ("T4", 1, "T4"), ("T4:1", 1, "T4"), ("A100-80GB:2", 2, "A100-80GB")],
)
def test_every_way_to_write_a_gpu(gpu, count, type_):
    made = child(gpu=gpu)
    assert made.spec.gpu_per_worker == count
    assert made.metadata.annotations.get("modal-operator.io/gpu-type") == type_
    assert made.metadata.annotations["skysail.dev/offload"] == "modal"
    assert validate(made) == ()


def test_cores_of_modal_are_two_cpus_each():
    limits = container(cpu="1.5", memory="1Gi")["resources"]["limits"]
    assert (limits["cpu"], limits["memory"]) == ("3", "1Gi")


def test_words_are_verbatim_except_for_rank_and_size():
    made = container(command=["run", "$(HOME)", "{rank}/{world_size}"], args=["$x"])
    assert made["command"] == ["run", "$$(HOME)", "$(RANK)/$(WORLD_SIZE)"]
    assert made["args"] == ["$$x"]


def test_no_command_is_the_entrypoint_of_the_image():
    assert container()["command"] == []


def test_variables_timeout_retries_and_replicas():
    made = child(env={"A": "$b"}, timeout=60, retries=2, replicas=3, enable_i6pn=True)
    assert made.metadata.annotations["modal-operator.io/timeout"] == "60"
    assert (made.spec.restart_policy, made.spec.run_policy.backoff_limit, made.spec.workers) == ("OnFailure", 2, 3)
    env = {row["name"]: row.get("value") for row in container(env={"A": "$b"}, replicas=3, enable_i6pn=True)["env"]}
    assert (env["A"], env["MODAL_I6PN_ENABLED"]) == ("$$b", "true")
    assert {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(env)
    assert child().spec.restart_policy == "Never"


def test_too_many_gpus_are_refused_with_the_fix():
    assert "replicas" in modal_job.errors(job(gpu="H100:16").spec)[0]
    assert modal_job.errors(job(gpu="H100:8").spec) == ()


@pytest.mark.parametrize("gpu", [None, "H100", "H100:4"])
def test_gang_beyond_the_limits_of_the_cloud_is_an_error_with_the_fix(gpu):
    gang = job(gpu=gpu, replicas=2, enable_i6pn=True).spec
    assert modal_job.errors(gang) == ()
    assert "request 8 H100 for each pod" in modal_job.errors(gang, LIMITS)[0]
    assert modal_job.errors(job(gpu=gpu).spec, LIMITS) == ()
    assert modal_job.errors(job(gpu="H100:8", replicas=2, enable_i6pn=True).spec, LIMITS) == ()


def test_a_tunnel_is_asked_for_by_annotations_of_the_pods():
    asked = {"modal-operator.io/tunnel": "true", "modal-operator.io/tunnel-port": "6006"}
    (_, manifest), *_ = build_children(child(tunnel_enabled=True, tunnel_port=6006), 0, None).jobs
    annotations = manifest["spec"]["template"]["metadata"]["annotations"]
    assert asked.items() <= annotations.items()
    assert not asked.keys() & child(tunnel_port=6006).metadata.annotations.keys()


@pytest.mark.parametrize("name", ["a", "1.2.3", "x" * 253])
def test_any_name_has_a_valid_child(name):
    assert len(modal_job.child_name(name)) <= 253
