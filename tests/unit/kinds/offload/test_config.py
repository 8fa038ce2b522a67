"""Configuration of offload from settings."""

import pytest

from skysail.base.settings import Settings, load
from skysail.kinds.offload.config import offload_config

KATIB = {"Trial", "Experiment", "Suggestion"}
TRAINING_OPERATOR = {"PyTorchJob", "TFJob", "XGBoostJob", "MPIJob", "PaddleJob", "JAXJob"}
KSERVE = {"InferenceService", "InferenceGraph"}


@pytest.mark.parametrize(
    ("adapters", "expected"),
    [
        ({}, set()),
        ({"katib_adapter": False}, KATIB),
        ({"training_operator_adapter": False}, TRAINING_OPERATOR),
        ({"kserve_adapter": False}, KSERVE),
        (
            {"katib_adapter": False, "training_operator_adapter": False, "kserve_adapter": False},
            KATIB | TRAINING_OPERATOR | KSERVE,
        ),
    ],
    ids=["none", "katib", "training-operator", "kserve", "all"],
)
def test_offload_config_adapter_off_excludes_the_kinds_of_its_project(adapters, expected):
    assert offload_config(Settings(**adapters)).excluded_kinds == expected


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("ENABLE_KATIB_ADAPTER", KATIB),
        ("ENABLE_TRAINING_OPERATOR_ADAPTER", TRAINING_OPERATOR),
        ("ENABLE_KSERVE_ADAPTER", KSERVE),
    ],
)
def test_offload_config_variable_turns_the_adapter_off(variable, expected):
    assert offload_config(load({}, {variable: "false"})).excluded_kinds == expected
