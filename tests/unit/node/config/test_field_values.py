"""Values of a pod on their way to a command line, a file or a path: unchanged, or rejected with the field's path."""

from __future__ import annotations

import posixpath
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.node.config import container_config, field_values
from skysail.node.config.env import ResolvedReferences
from skysail.node.config.errors import InvalidField, Missing
from skysail.node.config.field_values import Budget
from tests.unit.node.pods import container, pod

_OPTIONS = ("--ro-bind", "--", "--args", "x\0--ro-bind\0/\0/host", "-c", "@file", "$(id)", "`id`", "; id", "a=b", "=")
_ODD = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    st.sampled_from(_OPTIONS),
    st.text(st.sampled_from("\0\n\r\t\x01\x1b\x7f ./"), max_size=20),
    st.sampled_from(["x" * 1_000_000, "x" * 131_071, "/" + "y" * 300, "../" * 2000, "/../oldroot/tmp/x"]),
)
_NUL = "x\0--ro-bind\0/\0/host"
FACTS = ResolvedReferences(
    config_maps={"c": {"good": b"1", "bad": _NUL.encode()}},
    secrets={"s": {"bad": _NUL.encode()}, "long": {"key": b"x" * 200_000}, "bytes": {"key": b"\xff\xfe"}},
    services={},
)


@given(_ODD)
def test_an_argument_passes_unchanged_or_not_at_all(text: str):
    if "\0" in text or len(text.encode()) > 131_071:
        with pytest.raises(InvalidField, match=r"^p: "):
            field_values.argument("p", text, Budget())
    else:
        assert field_values.argument("p", text, Budget()) == text


@given(_ODD, _ODD)
def test_a_variable_passes_unchanged_or_not_at_all(name: str, value: str):
    whole = f"{name}={value}"
    try:
        assert field_values.variable("p", name, value, Budget()) == value
    except InvalidField:
        assert not name or "=" in name or "\0" in whole or len(whole.encode()) > 131_071
    else:
        assert whole.partition("=") == (name, "=", value)
        assert "\0" not in whole


@given(_ODD)
def test_a_path_in_a_container_never_leaves_its_root(text: str):
    try:
        found = field_values.absolute_path("p", text)
    except InvalidField:
        return
    assert found == posixpath.normpath(found)
    assert found.startswith("/")
    assert not found.startswith("//")
    assert ".." not in found.split("/")
    assert "\0" not in found


@given(_ODD)
def test_a_path_in_a_volume_never_leaves_it(text: str):
    try:
        found = field_values.relative_path("p", text)
    except InvalidField:
        return
    assert found == text
    assert not found.startswith("/")
    assert ".." not in found.split("/")
    assert "\0" not in found


@given(_ODD)
def test_a_host_name_is_one_word_of_one_line(text: str):
    try:
        assert field_values.host_name("p", text) == text
    except InvalidField:
        return
    assert text.split() == ([text] if text else [])


@given(st.text(st.sampled_from("$()AB\0 "), max_size=30))
def test_expanding_is_what_it_was(text: str):
    known = {"A": "1", "B": "$(A)"}

    def replaced(match: re.Match[str]) -> str:
        return "$" if match.group(1) is None else known.get(match.group(1), match.group(0))

    assert field_values.expand("p", text, known) == re.sub(r"\$(?:\$|\(([^()]*)\))", replaced, text)


def test_variables_that_multiply_are_stopped_before_they_fill_the_memory():
    env = [{"name": "V0", "value": "x" * 1000}]
    env += [{"name": f"V{number}", "value": f"$(V{number - 1})" * 1000} for number in range(1, 30)]
    of = pod(container("main", env=env))
    with pytest.raises(InvalidField, match=r"^spec\.containers\[0\]\.env\[1\]\.value: .* the kernel takes"):
        container_config.container(of, of.spec.containers[0], FACTS)


def test_all_words_together_have_a_limit():
    of = pod(container("main", env=[{"name": "A", "value": "x" * 100_000}], args=["$(A)"] * 10_000))
    with pytest.raises(InvalidField, match=r"^spec\.containers\[0\]\.args\[19\]: .* larger than 2097152 bytes"):
        container_config.container(of, of.spec.containers[0], FACTS)


def _mounted(**fields):
    return {"volumeMounts": [{"name": "v", "mountPath": "/v", **fields}]}


_LONG = "x" * 131_072
REJECTED = [
    ({"command": ["sh", _NUL]}, "command[1]"),
    ({"args": [_NUL]}, "args[0]"),
    ({"args": [_LONG]}, "args[0]"),
    ({"env": [{"name": "A", "value": "1"}, {"name": "B"}, {"name": "C", "value": _NUL}]}, "env[2].value"),
    ({"env": [{"name": "A", "value": _LONG}]}, "env[0].value"),
    ({"env": [{"name": "", "value": "1"}]}, "env[0].value"),
    ({"env": [{"name": "A=B", "value": "1"}]}, "env[0].value"),
    ({"env": [{"name": "A\0B", "value": "1"}]}, "env[0].value"),
    ({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "bad"}}}]}, "env[0].valueFrom"),
    ({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "long", "key": "key"}}}]}, "env[0].valueFrom"),
    ({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "bad"}}}]}, "env[0].valueFrom"),
    (
        {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['a']"}}}]},
        "env[0].valueFrom",
    ),
    ({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations"}}}]}, "env[0].valueFrom"),
    ({"envFrom": [{"secretRef": {"name": "s"}}]}, "envFrom[0] (key bad of Secret s)"),
    ({"envFrom": [{"secretRef": {"name": "bytes"}}, {"configMapRef": {"name": "c"}}]}, "envFrom[1] (key bad of"),
    ({"envFrom": [{"prefix": "A=", "secretRef": {"name": "bytes"}}]}, "envFrom[0] (key key of Secret bytes)"),
    ({"workingDir": f"/{_NUL}"}, "workingDir"),
    ({"workingDir": "/x" * 4096}, "workingDir"),
    (_mounted(mountPath=f"/{_NUL}"), "volumeMounts[0].mountPath"),
    (_mounted(mountPath="/" + "x" * 256), "volumeMounts[0].mountPath"),
    (_mounted(subPath=_NUL), "volumeMounts[0].subPath"),
    (_mounted(subPath="a/../../b"), "volumeMounts[0].subPath"),
    (_mounted(subPathExpr="$(A)") | {"env": [{"name": "A", "value": "../x"}]}, "volumeMounts[0].subPathExpr"),
    ({"terminationMessagePath": _NUL}, "terminationMessagePath"),
    ({"image": "busybox\0"}, "image"),
    ({"image": "busy\nbox"}, "image"),
    ({"livenessProbe": {"exec": {"command": ["a", _NUL]}}}, "livenessProbe.exec.command[1]"),
    ({"lifecycle": {"preStop": {"exec": {"command": [_NUL]}}}}, "lifecycle.preStop.exec.command[0]"),
]


@pytest.mark.parametrize(("fields", "path"), REJECTED)
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_a_bad_value_is_told_by_the_path_of_its_field(fields, path, kind):
    bad = container("bad", **fields)
    of = pod(container("main"), bad, metadata={"annotations": {"a": _NUL}}) if kind == "containers" else _with_init(bad)
    found = next(c for c in container_config.all_containers(of) if c.name == "bad")
    with pytest.raises(InvalidField) as caught:
        container_config.container(of, found, FACTS)
    index = 1 if kind == "containers" else 0
    assert str(caught.value).startswith(f"spec.{kind}[{index}].{path}")
    assert "\0" not in str(caught.value)
    assert "/host" not in str(caught.value)


def _with_init(source):
    return pod(container("main"), initContainers=[source], metadata={"annotations": {"a": _NUL}})


@pytest.mark.parametrize(
    ("volume", "path"),
    [
        ({"configMap": {"name": "c", "items": [{"key": "good", "path": "a\0b"}]}}, "spec.volumes (v)"),
        ({"configMap": {"name": "c", "items": [{"key": "good", "path": "/a"}]}}, "spec.volumes (v)"),
        ({"secret": {"secretName": "s", "items": [{"key": "bad", "path": "a/../../b"}]}}, "spec.volumes (v)"),
        (
            {"downwardAPI": {"items": [{"path": "../a", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            "spec.volumes (v)",
        ),
        (
            {"projected": {"sources": [{"configMap": {"name": "c", "items": [{"key": "good", "path": ".."}]}}]}},
            "spec.v",
        ),
        ({"hostPath": {"path": "/a\0b"}}, "spec.volumes (v).hostPath.path"),
    ],
)
def test_a_bad_path_of_a_volume_is_told(volume, path):
    of = pod(volumes=[{"name": "v", **volume}])
    with pytest.raises(InvalidField) as caught:
        container_config.sandbox(of, FACTS)
    assert str(caught.value).startswith(path)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"hostname": "a\nb"}, "spec.hostname"),
        ({"hostname": "a\0--ro-bind"}, "spec.hostname"),
        ({"subdomain": "a b"}, "spec.subdomain"),
        ({"hostAliases": [{"ip": "10.0.0.1\n10.0.0.2 evil", "hostnames": []}]}, "spec.hostAliases[0].ip"),
        ({"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a\n10.0.0.2 evil"]}]}, "spec.hostAliases[0].hostnames"),
    ],
)
def test_a_bad_name_of_a_host_is_told(spec, path):
    of = pod(**spec)
    with pytest.raises(Missing) as caught:
        container_config.sandbox(of, FACTS)
    assert str(caught.value).startswith(path)


def test_bytes_of_a_secret_that_are_no_text_stay_a_file():
    of = pod(volumes=[{"name": "v", "secret": {"secretName": "bytes"}}])
    source = container_config.sandbox(of, FACTS).volumes[0].source
    assert msgspec.to_builtins(source)["files"][0]["content"]


@pytest.mark.parametrize("value", ["/canary", "../canary", "canary/..", "canary\0", "canary" * 1000])
def test_sub_path_made_of_a_secret_is_rejected_without_the_secret(value):
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    of = pod(container("main", env=env, **_mounted(subPathExpr="$(A)")))
    facts = ResolvedReferences(config_maps={}, secrets={"s": {"k": value.encode()}}, services={})
    with pytest.raises(InvalidField) as caught:
        container_config.container(of, of.spec.containers[0], facts)
    assert "canary" not in str(caught.value)
