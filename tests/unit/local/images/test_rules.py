from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from skysail.local.errors import Misused
from skysail.local.images.rules import DEFAULT_RULES, CopiedDir, Rule, Rules, names, tag_version

SAMPLE = Path(__file__).parents[4] / "config" / "samples" / "ml_v1alpha1_trainingjob.yaml"


@pytest.fixture
def rules(tmp_path) -> Rules:
    return Rules(tmp_path / "home" / "images.json")


@pytest.mark.parametrize(
    ("image", "pattern"),
    [
        ("python", "python:*"),
        ("python:3.12-slim", "python:*"),
        ("docker.io/library/python:3.12", "python:*"),
        ("python@sha256:0123", "python:*"),
        ("registry.example.test:5000/python:3", "python:*"),
        ("localhost/python:3", "python:*"),
        ("pytorch/pytorch:2.1.0-cuda12.1", "pytorch/pytorch:*"),
        ("docker.io/pytorch/pytorch", "pytorch/pytorch:*"),
        ("ghcr.example.test/team/xgboost-train:v1", "*xgboost*"),
        ("busybox:1.36", "busybox:*"),
        ("quay.example.test/debian", "debian:*"),
    ],
)
def test_an_image_is_found_under_its_spellings(rules, image, pattern):
    found = rules.find(image)
    assert found is not None
    assert found.pattern == pattern


@pytest.mark.parametrize("image", ["nginx", "team/python:3", "python-app:1", "registry.example.test/team/ubuntu:22.04"])
def test_another_image_is_not_taken_for_one_of_ours(rules, image):
    assert rules.find(image) is None


def test_a_port_is_no_tag():
    assert "localhost:5000/app" in names("localhost:5000/app")
    assert "app:latest" in names("localhost:5000/app")
    assert "localhost" not in names("localhost:5000/app")


def test_the_users_rules_come_first_and_the_newest_before_older_ones(rules):
    rules.add(Rule(pattern="python:3*", packages=("numpy",)))
    rules.add(Rule(pattern="python:3.12*", packages=("scipy",)))
    assert rules.find("python:3.12-slim").packages == ("scipy",)
    assert rules.find("python:3.11").packages == ("numpy",)
    assert rules.find("python:2").packages == ()


def test_adding_a_pattern_again_replaces_it(rules):
    rules.add(Rule(pattern="python:*", packages=("a",)))
    rules.add(Rule(pattern="python:*", packages=("b",)))
    assert [rule.packages for rule in rules.own()] == [("b",)]
    assert [rule.pattern for rule in rules.all()].count("python:*") == 1


def test_what_was_added_can_be_removed_and_the_starting_set_returns(rules):
    rules.add(Rule(pattern="python:*", packages=("a",)))
    rules.remove("python:*")
    assert rules.all() == DEFAULT_RULES
    with pytest.raises(Misused, match="skysail image list"):
        rules.remove("python:*")


def test_the_image_of_the_sample_has_the_program_that_it_names(rules):
    spec = yaml.safe_load(SAMPLE.read_text())["spec"]
    [copied] = rules.find(spec["image"]).copied
    program = Path(spec["command"][-1])
    assert (Path(copied.source) / program.relative_to(copied.target)).is_file()


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("pytorch/pytorch:1.12.0-cuda11.3", "1.12.0"),
        ("pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime", "2.9.0"),
        ("registry.example.test:5000/tensorflow/tensorflow:2.15", "2.15"),
        ("pytorch/pytorch:v2", "2"),
        ("pytorch/pytorch:2.1@sha256:0123", "2.1"),
        ("pytorch/pytorch:latest", ""),
        ("pytorch/pytorch", ""),
        ("registry.example.test:5000/pytorch/pytorch", ""),
        ("pytorch/pytorch:2.1rc1", ""),
        ("pytorch/pytorch:2.1.0.1.2", ""),
        ("pytorch/pytorch:2;os_name", "2"),
        ("pytorch/pytorch:--index-url", ""),
    ],
)
def test_tag_version_is_the_beginning_of_the_tag(image, version):
    assert tag_version(image) == version


@pytest.mark.parametrize(
    ("image", "packages"),
    [
        ("pytorch/pytorch:2.9.0-cuda12.8", ("torch==2.9.0", "numpy")),
        ("pytorch/pytorch:2.1", ("torch==2.1.*", "numpy<2")),
        ("pytorch/pytorch:2", ("torch==2.*", "numpy")),
        ("pytorch/pytorch:latest", ("torch", "numpy")),
        ("tensorflow/tensorflow:2.15", ("tensorflow-cpu==2.15.*",)),
        ("tensorflow/serving:2.15.1", ("tensorflow-cpu==2.15.1",)),
        ("tensorflow/serving:latest", ("tensorflow-cpu",)),
        ("team/xgboost-app:1.0", ("xgboost-cpu", "numpy", "scipy")),
    ],
)
def test_for_tag_pins_the_framework_of_official_images_only(rules, image, packages):
    found = rules.find(image)
    assert found is not None
    assert found.for_tag(image).packages == packages


@pytest.mark.parametrize(
    ("stored", "copied"),
    [
        (None, ()),
        ({"source": "/code", "target": "/a"}, (CopiedDir("/code", "/a"),)),
        ([{"source": "/code", "target": "/a"}], (CopiedDir("/code", "/a"),)),
    ],
)
def test_rules_of_earlier_versions_are_read(tmp_path, stored, copied):
    (tmp_path / "images.json").write_text(json.dumps([{"pattern": "x", "copied": stored}]))
    assert Rules(tmp_path / "images.json").find("x").copied == copied
