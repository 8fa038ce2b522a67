"""What is refused at the door, what is only warned about, and that the plan has the same sentences."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skysail.kinds.serving.admission.validation import validate, warnings_for
from skysail.kinds.serving.admission.webhook import hooks
from skysail.kinds.serving.api.types import KINDS, ML_MODEL, MODEL_DEPLOYMENT
from tests.unit.kinds.serving.samples import TERMS, deployment, ml_model, told

FORBIDDEN = "http://169.254.169.254/latest/meta-data"


def admit(kind, config, object_, old):
    hook = next(hook for hook in hooks(config) if hook.name == kind.resource.plural)
    return hook.admit(object_, old)


def manifest(model: Any) -> dict[str, Any]:
    return msgspec.to_builtins(model)


WRONG_DEPLOYMENTS = [
    ({"modelURI": FORBIDDEN}, "spec.modelURI is invalid. 169.254.169.254 "),
    ({"modelURI": "model.pt"}, "spec.modelURI is invalid. The address"),
    ({"modelURI": "s3://bucket"}, "s3://bucket/path"),
    ({"modelURI": "file:///opt/m", "sha256": "ab" * 32}, "spec.sha256 needs a model that is downloaded"),
    ({"validateScript": "http://10.0.0.1/v.py"}, "spec.validateScript is invalid. 10.0.0.1 is a private address"),
    ({"validateScript": "s3://bucket/v.py"}, "a key of the ConfigMap iris-validate."),
    ({"validateScript": "a\nb"}, "spec.validateScript contains control characters"),
    ({"resources": {}, "autoscale": True}, "set spec.resources.requests.cpu"),
    ({"resources": {"requests": {"memory": "1Gi"}}, "autoscale": True}, "set spec.resources.requests.cpu"),
    ({"resources": {"requests": {"cpu": "1e2.5"}}}, "spec.resources.requests has cpu: 1e2.5"),
    ({"resources": {"requests": {"cpu": 2}, "limits": {"cpu": 1}}}, "which is above its limit of 1"),
    (
        {"resources": {"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 2}}},
        "make them equal",
    ),
    ({"resources": {"claims": [{"name": "gpu"}]}}, "request devices in spec.resources.limits"),
    ({"env": [{"name": "A"}, {"name": "MODEL_PATH"}]}, "spec.env[1] sets MODEL_PATH, which Skysail sets"),
    ({"env": [{"name": "A", "value": "x\0--bind"}]}, "spec.env[0].value has a NUL byte"),
    ({"annotations": {"skysail.dev/ready-path": "ping"}}, "skysail.dev/ready-path is ping"),
    ({"annotations": {"skysail.dev/offload": ""}}, "is empty. Write one of modal, runpod, cheapest, or remove"),
    ({"annotations": {"skysail.dev/offload": "moon"}}, "is no provider. Use one of modal, runpod, cheapest."),
    (
        {"annotations": {"skysail.dev/offload": "modal"}, "modelURI": "pvc://claim/iris"},
        "spec.modelURI is in a PVC, which no cloud can mount: put the model to an https, s3, gs, hf or oci address",
    ),
]
WRONG_ML_MODELS = [
    ({"modelURL": ""}, "spec.modelURL is empty"),
    ({"modelURL": FORBIDDEN}, "spec.modelURL is invalid. 169.254.169.254"),
    (
        {"framework": "sklearn"},
        "spec.framework is sklearn, which no runtime serves: use one of onnx, pytorch, tensorflow, torchserve",
    ),
    ({"env": [{"name": "MODEL_BASE_PATH"}]}, "spec.env[0] sets MODEL_BASE_PATH"),
    ({"env": [{"name": "A"}, {"name": "B", "value": "\0"}]}, "spec.env[1].value has a NUL byte"),
    ({"storageSize": "0"}, "spec.storageSize is 0"),
    ({"storageSize": "-1Gi"}, "spec.storageSize is -1Gi"),
    ({"storageSize": "1e999999"}, "spec.storageSize is 1e999999"),
    ({"resources": {"limits": {"memory": "1e9.5"}}}, "spec.resources.limits has memory"),
    ({"annotations": {"skysail.dev/access-mode": "ReadOnlyMany"}}, "set one of ReadWriteOnce, ReadWriteMany."),
]
WRONG = [
    *((deployment(**changed), words) for changed, words in WRONG_DEPLOYMENTS),
    *((ml_model(**changed), words) for changed, words in WRONG_ML_MODELS),
]


def kind_of(model: Any) -> Any:
    return next(kind for kind in KINDS if isinstance(model, kind.struct))


@pytest.mark.parametrize(("model", "words"), WRONG)
def test_what_is_wrong_is_refused_with_the_fix(model, words):
    (found,) = validate(model, TERMS)
    assert words in found
    assert found.endswith(".")
    assert admit(kind_of(model), TERMS, manifest(model), None).denied == found


@pytest.mark.parametrize(
    "model",
    [
        deployment(),
        deployment(autoscale=True),
        deployment(resources={"limits": {"cpu": "1"}}, autoscale=True),
        deployment(resources={}),
        deployment(env=[{"name": "MODEL_BASE_PATH", "value": "/x"}, {"name": "ALLOW_CODE", "value": "1"}]),
        deployment(modelURI="file:///opt/iris.onnx", validateScript="validate.py"),
        deployment(validateScript="https://models.example.com/validate.py"),
        deployment(resources={"requests": {"nvidia.com/gpu": 1}}),
        deployment(runtime="torchserve", modelURI="https://models.example.com/iris.mar"),
        deployment(modelURI="pvc://claim/iris", sha256="ab" * 32),
        ml_model(),
        ml_model(replicas=0, expose=False),
        ml_model(framework="PyTorch", modelURL="hf://org/name"),
        ml_model(annotations={"skysail.dev/access-mode": "ReadWriteMany", "skysail.dev/ready-path": "/ping"}),
    ],
)
def test_what_can_be_served_is_let_in_as_it_is(model):
    admission_response = admit(kind_of(model), TERMS, manifest(model), None)
    assert (admission_response.denied, admission_response.patch) == (None, ())


def test_what_the_operator_was_told_to_allow_is_let_in():
    inside = deployment(modelURI="http://minio.storage.svc/iris.onnx")
    assert validate(inside, TERMS) != ()
    assert validate(inside, told(allowed_model_hosts=("*.svc",))) == ()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (ml_model(modelURL="https://host.example.com/tf_model.h5"), "ends with .h5, which tensorflow cannot load"),
        (deployment(runtime="torchserve", modelURI="https://host.example.com/a.pt"), "torch-model-archiver"),
        (deployment(runtime="torchserve", modelURI="https://host.example.com/a.mar"), "no longer maintained"),
        (deployment(modelURI="https://host.example.com/a.h5"), "export the model to ONNX"),
        (
            deployment(autoscale=True, annotations={"skysail.dev/offload": "modal"}),
            "spec.autoscale has no effect at a cloud",
        ),
        (
            deployment(runtimeImage="mine:1", annotations={"modal-operator.io/offload": "true"}),
            "image mine:1 needs the download program",
        ),
        (
            ml_model(annotations={"runpod.io/offload": "true"}),
            "image tensorflow/serving:latest needs the download program",
        ),
    ],
)
def test_what_is_likely_to_fail_is_warned_about_and_let_in(model, words):
    """The manifests that people have apply unchanged; what a file really is only the download tells."""
    admission_response = admit(kind_of(model), TERMS, manifest(model), None)
    assert admission_response.denied is None
    assert words in " ".join(admission_response.warnings)


def test_a_framework_that_nobody_serves_is_cautioned_about_by_its_objection_only():
    assert warnings_for(ml_model(framework="sklearn"), TERMS) == ()


def test_every_objection_is_told_at_once():
    refused = admit(ML_MODEL, TERMS, manifest(ml_model(framework="x", modelURL="")), None).denied
    assert "spec.modelURL" in refused
    assert "spec.framework" in refused


@pytest.mark.parametrize("object_", [{}, {"metadata": {}, "spec": None}, {"metadata": {}, "spec": {"version": 1}}])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource.kind)
def test_what_has_the_wrong_types_is_left_to_the_schema(kind, object_):
    assert admit(kind, TERMS, object_, None).denied is None


def test_a_model_whose_name_the_server_will_make_is_looked_at_too():
    unnamed = manifest(deployment(modelURI=FORBIDDEN))
    unnamed["metadata"] = {"generateName": "iris-", "namespace": "shop"}
    assert admit(MODEL_DEPLOYMENT, TERMS, unnamed, None).denied is not None


def test_what_was_wrong_before_can_still_be_changed_otherwise():
    before, after = (manifest(deployment(modelURI=FORBIDDEN, version=version)) for version in ("v1", "v2"))
    assert admit(MODEL_DEPLOYMENT, TERMS, after, before).denied is None


def test_a_model_that_goes_is_let_go():
    going = manifest(deployment(modelURI=FORBIDDEN))
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert admit(MODEL_DEPLOYMENT, TERMS, going, manifest(deployment())).denied is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"storageSize": "9Gi"}, None),
        ({"storageSize": "4Gi"}, None),
        ({"storageSize": "5120Mi"}, None),
        (
            {"annotations": {"skysail.dev/access-mode": "ReadWriteMany"}},
            "Annotation skysail.dev/access-mode is immutable",
        ),
        ({"replicas": 3, "expose": False}, None),
    ],
)
def test_what_a_claim_was_made_with_stays(changed, words):
    refused = admit(ML_MODEL, TERMS, manifest(ml_model(**changed)), manifest(ml_model())).denied
    assert refused is None if words is None else refused.startswith(words)


@pytest.mark.parametrize(("size", "is_told"), [("9Gi", False), ("5120Mi", False), ("4Gi", True)])
def test_a_volume_only_grows_and_whoever_wants_less_is_told(size, is_told):
    found = admit(ML_MODEL, TERMS, manifest(ml_model(storageSize=size)), manifest(ml_model()))
    assert (found.denied, f"spec.storageSize {size} has no effect" in " ".join(found.warnings)) == (None, is_told)


def test_only_changed_wishes_are_asked_about():
    asked = {hook.path: hook for hook in hooks(TERMS)}
    assert asked.keys() == {"/admit/modeldeployments", "/admit/mlmodels"}
    for hook in asked.values():
        condition = dict(hook.match_conditions)["spec-changed"]
        assert condition.startswith("oldObject == null || object.spec != oldObject.spec")
        assert hook.admit({}, None).denied is None


@pytest.mark.parametrize(("fewest", "is_told"), [(1, True), (9, True), (10, False)])
def test_servers_that_go_with_their_autoscaler_are_told(fewest, is_told):
    before = deployment(autoscale=True)
    before = msgspec.structs.replace(before, status=msgspec.structs.replace(before.status, replicas=10))
    after = deployment(autoscale=False, minReplicas=fewest)
    found = admit(MODEL_DEPLOYMENT, TERMS, manifest(after), manifest(before))
    told_ = f"Without spec.autoscale, only {fewest} of 10 servers stay"
    assert (found.denied, any(each.startswith(told_) for each in found.warnings)) == (None, is_told)
    again = admit(MODEL_DEPLOYMENT, TERMS, manifest(after), manifest(after))
    assert again.warnings == ()


@pytest.mark.parametrize(("number", "version", "is_told"), [(1, "v9", True), (None, "v9", False), (1, "", False)])
def test_a_change_that_is_not_served_because_of_a_rollback_is_told(number, version, is_told):
    before, after = (deployment(rollbackTo=number, **more) for more in ({}, {"version": version} if version else {}))
    found = admit(MODEL_DEPLOYMENT, TERMS, manifest(after), manifest(before))
    told_ = any("spec.rollbackTo pins revision 1" in each for each in found.warnings)
    assert (found.denied, told_) == (None, is_told)
