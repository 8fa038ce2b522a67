"""The environment of a container, as a kubelet resolves it."""

from __future__ import annotations

import pytest

from skysail.node.config import env as container_env
from skysail.node.config.env import ResolvedReferences
from skysail.node.config.errors import Missing
from tests.unit.node.pods import container, pod

FACTS = ResolvedReferences(
    config_maps={"c": {"A": b"from c", "B": b"b", "1bad": b"x"}},
    secrets={"s": {"A": b"from s", "key": b"secret"}},
    services={"KUBERNETES_SERVICE_HOST": "10.96.0.1"},
    pod_ip="10.244.0.2",
    host_ip="10.244.0.1",
    allocatable={"cpu": "64", "memory": "256Gi"},
)


def resolve(*env: dict, env_from: tuple[dict, ...] = (), **fields) -> dict[str, str]:
    of = pod(container("main", env=list(env), envFrom=list(env_from), **fields), metadata={"labels": {"app": "x"}})
    found = container_env.resolve(of, of.spec.containers[0], FACTS)
    return {name: value for name, value in found.items() if name not in FACTS.services}


def field(path: str) -> dict:
    return {"name": "F", "valueFrom": {"fieldRef": {"fieldPath": path}}}


def test_later_sources_win_and_env_wins_over_all():
    found = resolve(
        {"name": "B", "value": "own"},
        env_from=({"configMapRef": {"name": "c"}}, {"secretRef": {"name": "s"}}),
    )
    assert found == {"A": "from s", "B": "own", "1bad": "x", "key": "secret"}


def test_a_prefix_stands_before_each_name():
    found = resolve(env_from=({"prefix": "P_", "configMapRef": {"name": "c"}},))
    assert found == {"P_A": "from c", "P_B": "b", "P_1bad": "x"}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(A)", "x1y1"),
        ("$$(A)", "$(A)"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$(LATER)", "$(LATER)"),
        ("$A $( $", "$A $( $"),
        ("$(KUBERNETES_SERVICE_HOST)", "10.96.0.1"),
    ],
)
def test_references_see_what_stands_before_them(text, result):
    found = resolve({"name": "A", "value": "1"}, {"name": "T", "value": text}, {"name": "LATER", "value": "2"})
    assert found["T"] == result


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "a"),
        ("metadata.namespace", "n"),
        ("metadata.uid", "u-1"),
        ("metadata.labels['app']", "x"),
        ("metadata.labels['none']", ""),
        ("spec.nodeName", "local"),
        ("status.podIP", "10.244.0.2"),
        ("status.hostIP", "10.244.0.1"),
    ],
)
def test_fields_of_the_pod(path, value):
    assert resolve(field(path)) == {"F": value}


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [("limits.cpu", "1m", "500"), ("limits.memory", "1Mi", "262144"), ("requests.cpu", "0", "0")],
)
def test_resources_of_the_container(resource, divisor, value):
    source = {"resourceFieldRef": {"resource": resource, "divisor": divisor}}
    found = resolve({"name": "R", "valueFrom": source}, resources={"limits": {"cpu": "500m"}})
    assert found == {"R": value}


def key(kind: str, name: str, key: str, *, optional: bool = False) -> dict:
    return {"name": "K", "valueFrom": {kind: {"name": name, "key": key, "optional": optional}}}


def test_a_key_of_a_secret():
    assert resolve(key("secretKeyRef", "s", "key")) == {"K": "secret"}


@pytest.mark.parametrize(("name", "wanted"), [("none", "A"), ("c", "none")])
def test_an_optional_reference_may_be_absent(name, wanted):
    assert resolve(key("configMapKeyRef", name, wanted, optional=True)) == {}


@pytest.mark.parametrize(
    ("variable", "reason"),
    [
        (key("secretKeyRef", "none", "x"), "MandatorySecretNotFound"),
        (key("secretKeyRef", "s", "x"), "MandatorySecretNotFound"),
        (key("configMapKeyRef", "none", "x"), "MandatoryConfigMapNotFound"),
        (field("spec.priority"), "InvalidFieldPath"),
    ],
)
def test_a_mandatory_reference_must_be_there(variable, reason):
    with pytest.raises(Missing) as missing:
        resolve(variable)
    assert missing.value.reason == reason
    assert "optional" not in str(missing.value)


def test_services_are_told_by_name():
    found = container_env.service_variables({"my-db": ("10.96.0.7", (("sql", 5432), ("", 80)))})
    assert found["MY_DB_SERVICE_HOST"] == "10.96.0.7"
    assert found["MY_DB_SERVICE_PORT"] == "5432"
    assert found["MY_DB_SERVICE_PORT_SQL"] == "5432"
    assert found["MY_DB_PORT_80_TCP_ADDR"] == "10.96.0.7"
    assert container_env.service_variables({"none": ("10.96.0.8", ())}) == {}
