from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.base.names import Annotation
from skysail.claims.requirements import annotations
from skysail.claims.requirements.annotations import inherit, parse
from skysail.claims.requirements.types import OffloadRequest, OwnerLink, PodSpecView
from skysail.cloud.account import GpuRequest

MODAL, RUNPOD, OURS = "modal-operator.io/", "runpod.io/", "skysail.dev/"
KEYS = sorted({*map(str, annotations._READ), f"{MODAL}env-NAME"})


def request(annotations_: dict[str, str], labels: dict[str, str] | None = None, gpus: int = 0) -> OffloadRequest:
    limits = {"nvidia.com/gpu": gpus} if gpus else {}
    return parse(
        annotations_, labels or {}, msgspec.convert({"containers": [{"resources": {"limits": limits}}]}, PodSpecView)
    )


@pytest.mark.parametrize(
    ("written", "labels", "provider", "asked_by"),
    [
        ({}, {}, "", ""),
        ({f"{MODAL}offload": "true"}, {}, "modal", f"{MODAL}offload"),
        ({f"{MODAL}use-modal": "true"}, {}, "modal", f"{MODAL}use-modal"),
        ({"modal.com/enabled": "true"}, {}, "modal", "modal.com/enabled"),
        ({f"{MODAL}workload-type": "job"}, {}, "modal", f"{MODAL}workload-type"),
        ({}, {f"{MODAL}workload-type": "function"}, "modal", f"{MODAL}workload-type"),
        ({f"{RUNPOD}offload": "true"}, {}, "runpod", f"{RUNPOD}offload"),
        ({}, {f"{RUNPOD}offload": "true"}, "runpod", f"{RUNPOD}offload"),
        ({f"{OURS}offload": "modal"}, {}, "modal", f"{OURS}offload"),
        ({f"{OURS}offload": "runpod", f"{RUNPOD}offload": "true"}, {}, "runpod", f"{OURS}offload"),
        ({f"{OURS}offload": "cheapest"}, {}, "cheapest", f"{OURS}offload"),
        ({f"{MODAL}offload": "false"}, {}, "", ""),
        ({f"{RUNPOD}offload": "false"}, {f"{RUNPOD}offload": "true"}, "", ""),
        ({f"{RUNPOD}managed": "true"}, {}, "", ""),
    ],
)
def test_parse_request_for_cloud_names_provider(written, labels, provider, asked_by):
    found = request(written, labels)
    assert (found.provider, found.asked_by, found.errors, found.warnings) == (provider, asked_by, (), ())


def test_parse_annotations_of_an_earlier_run_ask_for_nothing():
    asked = {f"{RUNPOD}offload": "true"}
    stale = {f"{RUNPOD}offloaded": "true", f"{RUNPOD}pod-id": "old", f"{RUNPOD}cost-per-hr": "9.99"}
    assert request(stale) == request({})
    assert request({**asked, **stale}) == request(asked)


@pytest.mark.parametrize(
    ("written", "labels"), [({f"{RUNPOD}managed": "true"}, {}), ({}, {f"{RUNPOD}managed": "true"})]
)
def test_parse_managed_job_is_managed(written, labels):
    assert request(written, labels).is_managed
    assert not request({f"{RUNPOD}managed": "false"}, labels).is_managed


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ({f"{MODAL}offload": "true", f"{RUNPOD}offload": "true"}, f"{RUNPOD}offload"),
        ({f"{MODAL}use-modal": "true", f"{OURS}offload": "runpod"}, f"{MODAL}use-modal"),
        ({f"{MODAL}offload": "true", f"{OURS}offload": "cheapest"}, f"{MODAL}offload"),
        ({f"{OURS}offload": ""}, f"{OURS}offload"),
        ({f"{OURS}offload": "azure"}, f"{OURS}offload"),
        ({f"{OURS}offload": "Modal"}, f"{OURS}offload"),
        ({f"{MODAL}gpu": "H100", f"{MODAL}gpu-type": "T4"}, f"{MODAL}gpu-type"),
        *[
            ({f"{MODAL}gpu": wrong}, f"{MODAL}gpu")
            for wrong in ("H100:two", "H100:0", "H100:-3", "H100:²", ":2", "H100:")
        ],
        ({f"{MODAL}gpu": "H100:1025"}, f"{MODAL}gpu"),
        ({f"{MODAL}gpu": "H100,A100"}, f"{MODAL}gpu"),
        ({f"{MODAL}gpu-type": "A100:2"}, f"{MODAL}gpu-type"),
        *[
            ({f"{RUNPOD}max-price": wrong}, f"{RUNPOD}max-price")
            for wrong in ("", "0", "-1", "nan", "inf", "1e9", "$1", "1 ")
        ],
        ({f"{OURS}max-cost-usd": "ten"}, f"{OURS}max-cost-usd"),
        ({f"{RUNPOD}cloud-type": "PRIVATE"}, f"{RUNPOD}cloud-type"),
        ({f"{RUNPOD}cloud-type": ""}, f"{RUNPOD}cloud-type"),
        ({f"{RUNPOD}datacenter-ids": ""}, f"{RUNPOD}datacenter-ids"),
        ({f"{RUNPOD}datacenter-ids": "EU-RO-1,,EU-SE-1"}, f"{RUNPOD}datacenter-ids"),
        ({f"{RUNPOD}datacenter-ids": "EU-RO-1\nUS"}, f"{RUNPOD}datacenter-ids"),
        ({f"{RUNPOD}allowed-cuda-versions": "twelve"}, f"{RUNPOD}allowed-cuda-versions"),
        ({f"{RUNPOD}ports": "8080"}, f"{RUNPOD}ports"),
        ({f"{RUNPOD}ports": "65536/tcp"}, f"{RUNPOD}ports"),
        ({f"{RUNPOD}container-disk-gb": "20Gi"}, f"{RUNPOD}container-disk-gb"),
        ({f"{RUNPOD}volume-mount-path": "/a/../b"}, f"{RUNPOD}volume-mount-path"),
        ({f"{RUNPOD}templateId": "a", f"{RUNPOD}template-id": "b"}, f"{RUNPOD}template-id"),
        ({f"{RUNPOD}network-volume-id": "../x"}, f"{RUNPOD}network-volume-id"),
    ],
)
def test_parse_malformed_or_contradictory_value_is_error(written, named):
    found = request(written)
    assert [f"[{named}]" in error for error in found.errors] == [True]
    assert all(error.endswith(".") for error in found.errors)


def test_parse_gpu_count_differs_from_limits_is_error():
    assert request({f"{MODAL}gpu": "H100:2"}, gpus=2).errors == ()
    (error,) = request({f"{MODAL}gpu": "H100:2"}, gpus=1).errors
    assert "contradicts the containers' limits of 1" in error


@pytest.mark.parametrize(
    ("name", "default", "field", "value"),
    [
        ("timeout", "300", "max_lifetime", 300.0),
        ("retries", "0", "retries", 0),
        ("replicas", "1", "replicas", 1),
    ],
)
@pytest.mark.parametrize("wrong", ["soon", "-1", "1.5", "", " 1", "9" * 12, "٣"])
def test_parse_malformed_number_falls_back_with_warning(name, default, field, value, wrong):
    found = request({f"{MODAL}{name}": wrong})
    (warned,) = found.warnings
    assert getattr(found, field) == value
    assert warned.annotation == f"{MODAL}{name}"
    assert f"[{MODAL}{name}]" in warned.message
    assert f"{wrong!r}" in warned.message
    assert f"the default {default} is used" in warned.message
    assert found.errors == ()


@pytest.mark.parametrize(
    ("written", "gpus", "memory", "warnings"),
    [
        ({}, 0, 0, 0),
        ({}, 1, 16, 0),
        ({f"{RUNPOD}required-gpu-memory": "24"}, 1, 24, 0),
        ({f"{RUNPOD}required-gpu-memory": "24"}, 0, 24, 0),
        ({f"{RUNPOD}required-gpu-memory": "24GB"}, 1, 16, 1),
        ({f"{RUNPOD}required-gpu-memory": "0"}, 1, 16, 1),
        ({f"{MODAL}gpu-type": "T4"}, 1, 0, 0),
        ({f"{MODAL}gpu-type": "A100", f"{RUNPOD}required-gpu-memory": "80"}, 1, 80, 0),
    ],
)
def test_parse_gpu_memory_defaults_to_16_without_a_type(written, gpus, memory, warnings):
    found = request(written, gpus=gpus)
    assert (found.gpu_memory, len(found.warnings), found.errors) == (memory, warnings, ())


def test_parse_runpod_annotations_fill_fields_and_options():
    found = request(
        {
            f"{RUNPOD}max-price": "0.7",
            f"{RUNPOD}cloud-type": "community, secure",
            f"{RUNPOD}datacenter-ids": "EU-RO-1, EU-SE-1",
            f"{RUNPOD}allowed-cuda-versions": "12.4,12.6",
            f"{RUNPOD}templateId": "runpod-torch-v21",
            f"{RUNPOD}container-registry-auth-id": "clz1",
            f"{RUNPOD}ports": "8080/tcp,9000/http",
            f"{RUNPOD}container-disk-gb": "50",
            f"{RUNPOD}volume-gb": "0",
            f"{RUNPOD}volume-mount-path": "/workspace/data",
            f"{RUNPOD}network-volume-id": "vol1",
            f"{OURS}max-cost-usd": "12.50",
        },
        gpus=3,
    )
    assert (found.errors, found.warnings, found.unknown) == ((), (), ())
    assert found.max_usd_per_hour == 2.1
    assert found.max_cost_usd == 12.5
    assert found.cloud_types == ("COMMUNITY", "SECURE")
    assert found.regions == ("EU-RO-1", "EU-SE-1")
    assert found.cuda_versions == ("12.4", "12.6")
    assert dict(found.options) == {
        "allowed-cuda-versions": "12.4,12.6",
        "datacenter-ids": "EU-RO-1,EU-SE-1",
        "template-id": "runpod-torch-v21",
        "container-registry-auth-id": "clz1",
        "ports": "8080/tcp,9000/http",
        "container-disk-gb": "50",
        "volume-gb": "0",
        "volume-mount-path": "/workspace/data",
        "network-volume-id": "vol1",
    }


def test_parse_without_tier_is_secure():
    assert request({}).cloud_types == ("SECURE",)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ({}, None),
        ({f"{MODAL}offload": "true"}, None),
        ({f"{MODAL}use-modal": "true"}, 300.0),
        ({f"{MODAL}use-modal": "true", f"{MODAL}timeout": "5"}, 5.0),
        ({f"{MODAL}offload": "true", f"{MODAL}timeout": "7200"}, 7200.0),
    ],
)
def test_parse_timeout_has_default_in_container_mode_only(written, seconds):
    assert request(written).max_lifetime == seconds


def test_parse_annotations_without_effect_are_listed():
    assert request({f"{MODAL}handler": "app.run"}).not_honoured == (f"{MODAL}handler",)
    assert request({f"{MODAL}handler": ""}).not_honoured == ()
    assert request({f"{RUNPOD}interruptible": "true"}).not_honoured == (f"{RUNPOD}interruptible",)


def test_parse_replicas_need_a_private_network():
    asked = {f"{MODAL}replicas": "3"}
    found = request({**asked, f"{MODAL}enable-i6pn": "true"})
    assert (found.replicas, found.errors, found.not_honoured) == (3, (), ())
    (error,) = request(asked).errors
    assert "3 replicas need a private network" in error
    assert request({f"{MODAL}enable-i6pn": "true"}).replicas == 1


def test_parse_unknown_annotation_is_listed_and_written_ones_are_not():
    written = {str(name): "x" for name in annotations._WRITTEN}
    found = request({**written, f"{MODAL}gpus": "T4", f"{RUNPOD}retry-after": "x", "example.com/gpu": "x"})
    assert found.unknown == (f"{MODAL}gpus", f"{RUNPOD}retry-after")
    assert (found.errors, found.warnings, found.provider) == ((), (), "")


def test_parse_neither_true_nor_false_warns_once():
    (warned,) = request({f"{MODAL}use-modal": "yes"}).warnings
    assert warned.annotation == f"{MODAL}use-modal"
    assert request({}, {f"{MODAL}workload-type": "batch"}).warnings[0].message.startswith("metadata.labels[")


def test_every_documented_annotation_of_the_clouds_is_read_or_written():
    ours = {name for name in Annotation if name.startswith((MODAL, RUNPOD, "modal.com/"))} - {Annotation.MODAL_ENV}
    assert ours <= annotations._READ | annotations._WRITTEN


@pytest.mark.parametrize(
    ("written", "labels", "of_servers"),
    [
        ({"skysail.dev/offload": "modal", "note": "x"}, {}, {"skysail.dev/offload": "modal"}),
        ({}, {"runpod.io/offload": "true"}, {"runpod.io/offload": "true"}),
        ({"skysail.dev/offload": "moon"}, {}, {"skysail.dev/offload": "moon"}),
        ({"modal-operator.io/offload": "false", "modal-operator.io/gpu": "T4"}, {}, {}),
        (
            {"modal-operator.io/offload": "true", "modal-operator.io/gpu": "T4", "modal-operator.io/command": "ls"},
            {},
            {"modal-operator.io/offload": "true", "modal-operator.io/gpu": "T4"},
        ),
        ({"modal-operator.io/use-modal": "true"}, {}, {}),
    ],
)
def test_of_servers_only_place_and_machine_are_passed_on(written, labels, of_servers):
    assert annotations.of_servers(written, labels) == of_servers


def link(kind: str, annotations_: dict[str, str] | None = None, labels: dict[str, str] | None = None) -> OwnerLink:
    return OwnerLink(kind=kind, name=kind.lower(), annotations=annotations_ or {}, labels=labels or {})


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ([], {}),
        ([link("Job", {f"{RUNPOD}offload": "true", "example.com/a": "b"})], {f"{RUNPOD}offload": "true"}),
        ([link("Job", labels={f"{RUNPOD}managed": "true", "app": "x"})], {f"{RUNPOD}managed": "true"}),
        (
            [
                link("Job", {f"{RUNPOD}max-price": "1"}),
                link("CronJob", {f"{RUNPOD}max-price": "2", f"{MODAL}timeout": "9"}),
            ],
            {f"{RUNPOD}max-price": "1", f"{MODAL}timeout": "9"},
        ),
        # The farther owner asks for another cloud and GPU: its annotations of these groups do not count.
        (
            [
                link("Job", {f"{RUNPOD}offload": "true", f"{MODAL}gpu-type": "T4"}),
                link("CronJob", {f"{MODAL}offload": "true", f"{MODAL}gpu": "H100:8", f"{MODAL}retries": "1"}),
            ],
            {f"{RUNPOD}offload": "true", f"{MODAL}gpu-type": "T4", f"{MODAL}retries": "1"},
        ),
        (
            [link("Job", {f"{MODAL}env-A": "1"}), link("JobSet"), link("TrainJob", {"modal.com/enabled": "true"})],
            {f"{MODAL}env-A": "1", "modal.com/enabled": "true"},
        ),
        # Ids that Skysail writes belong to one object and are never inherited.
        ([link("Job", {f"{RUNPOD}pod-id": "x", f"{RUNPOD}offloaded": "true", f"{MODAL}app-id": "y"})], {}),
        ([link("Job", {f"{RUNPOD}offload": "false"}, {f"{RUNPOD}offload": "true"})], {f"{RUNPOD}offload": "false"}),
    ],
)
def test_inherit_nearest_owner_wins(chain, expected):
    assert inherit(chain) == expected


VALUES = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["true", "false", "1", "0", "T4:1", "cheapest", "modal", "runpod", "1Gi", "0.5", "a,b", "\0", "²"]),
)


@given(
    written=st.dictionaries(st.one_of(st.sampled_from(KEYS), st.text(max_size=30)), VALUES, max_size=12),
    labels=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4),
    gpus=st.one_of(st.integers(-2, 5000), st.text(max_size=8), st.floats(allow_nan=True)),
)
def test_parse_any_input_never_raises_and_names_the_annotation(written, labels, gpus):
    spec = msgspec.convert({"containers": [{"resources": {"limits": {"nvidia.com/gpu": gpus}}}]}, PodSpecView)
    found = parse(written, labels, spec)
    for warned in found.warnings:
        assert warned.annotation in {*written, *labels}
        assert warned.annotation in warned.message
    for error in found.errors:
        assert error.startswith("spec.") or any(f"[{name}]" in error for name in {*written, *labels})
    assert all(text.isprintable() for text in (*found.errors, *(warned.message for warned in found.warnings)))
    assert found.gpus is None or (1 <= found.gpus.count <= 1024 and isinstance(found.gpus, GpuRequest))
    assert found.max_usd_per_hour is None or found.max_usd_per_hour > 0
    assert parse(written, labels, spec) == found


@given(
    st.lists(st.dictionaries(st.one_of(st.sampled_from(KEYS), st.text(max_size=30)), VALUES, max_size=6), max_size=4)
)
def test_inherit_any_chain_yields_only_values_of_its_links(links):
    chain = [link("Job", annotations_) for annotations_ in links]
    found = inherit(chain)
    assert all(any(annotations_.get(name) == value for annotations_ in links) for name, value in found.items())
    assert inherit((link("Pod", found), *chain)) == found


@pytest.mark.parametrize(
    ("written", "port", "warned"),
    [
        ({}, None, 0),
        ({"tunnel": "true"}, 8000, 0),
        ({"tunnel": "true", "tunnel-port": "9000"}, 9000, 0),
        ({"tunnel": "true", "tunnel-port": "ninety"}, 8000, 1),
        ({"tunnel": "false", "tunnel-port": "9000"}, None, 1),
        ({"workload-type": "function"}, 8000, 0),
        ({"workload-type": "function", "tunnel-port": "7000"}, 7000, 0),
        ({"workload-type": "job"}, None, 0),
    ],
)
def test_parse_tunnel_port_needs_a_tunnel_or_a_function(written, port, warned):
    found = request({f"{MODAL}{name}": value for name, value in written.items()})
    assert (found.tunnel_port, len(found.warnings)) == (port, warned)
    assert found.not_honoured == ()
