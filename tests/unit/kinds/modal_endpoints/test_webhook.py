from __future__ import annotations

from typing import Any

import pytest

from skysail.kinds.modal_endpoints.webhook import HOOKS

HOOKS_BY_KIND = dict(zip(("ModalEndpoint", "ModalFunction"), HOOKS, strict=True))


def manifest(kind: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "modal-operator.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": "hello", "namespace": "ml"},
        "spec": {"image": "python:3.11-slim", "handler": "app.hello", **spec},
    }


@pytest.mark.parametrize("kind", HOOKS_BY_KIND)
@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        ({"cpu": "-1"}, "spec.cpu is -1, which is not above 0: write 0.5 or 2.0."),
        ({"memory": "0"}, "spec.memory is 0, which is not above 0: write 512Mi or 4Gi."),
        ({"env": {"": "x"}}, "spec.env has a variable without a name: give it a name, such as EPOCHS."),
        (
            {"env": {"ä": "x"}},
            "spec.env has the variable 'ä', whose name is not valid: use printable ASCII characters other than =.",
        ),
        (
            {"env": {"A=B": "x"}},
            "spec.env has the variable 'A=B', whose name is not valid: use printable ASCII characters other than =.",
        ),
    ],
)
def test_invalid_field_is_rejected_with_the_fix_and_stays_changeable(kind, spec, refusal):
    admit = HOOKS_BY_KIND[kind].admit
    assert admit(manifest(kind, **spec), None).denied == refusal
    assert admit(manifest(kind, **spec, gpu="T4"), manifest(kind, **spec)).denied is None


@pytest.mark.parametrize("kind", HOOKS_BY_KIND)
def test_valid_fields_are_admitted(kind):
    hook = HOOKS_BY_KIND[kind]
    assert hook.admit(manifest(kind, cpu="0.5", memory="16Gi", env={"my.key": ""}), None).denied is None
    assert hook.path == f"/admit/{kind.lower()}s"
