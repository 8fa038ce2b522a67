from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from skysail.cli import main
from skysail.cloud import contract
from skysail.local.errors import BuildFailed, Misused
from skysail.local.images.environments import Environment, Environments
from skysail.local.images.rules import STARTING_SET, Copied, Rule, Rules, names
from skysail.local.provider.run import argv


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
    assert rules.all() == STARTING_SET
    with pytest.raises(Misused, match="skysail image list"):
        rules.remove("python:*")


def environments(rules: Rules, tmp_path) -> Environments:
    return Environments(rules, tmp_path / "environments", os.environ)


def test_an_environment_is_made_once_and_runs_its_own_python(rules, tmp_path):
    made = environments(rules, tmp_path)
    steps: list[str] = []
    environment = made.find("python:3", steps.append)
    again = made.find("python:3", steps.append)
    assert environment == again
    assert [step.split()[0] for step in steps] == ["making", "the"]
    folder, base = environment.folders
    script = "import sys; print(sys.prefix, sys.base_prefix)"
    ran = subprocess.run([f"{folder}/bin/python3", "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [folder, base]
    assert environment.env["PATH"].startswith(f"{folder}/bin:")


def test_one_that_was_broken_off_is_made_again(rules, tmp_path):
    made = environments(rules, tmp_path)
    rule = rules.find("python:3")
    made.path(rule).mkdir(parents=True)
    (made.path(rule) / "half").touch()
    assert not made.is_made(rule)
    made.make(rule, lambda step: None)
    assert made.is_made(rule)
    assert not (made.path(rule) / "half").exists()


def test_equal_packages_share_an_environment_until_the_last_rule_goes(rules, tmp_path):
    made = environments(rules, tmp_path)
    one, two = Rule(pattern="one", python=sys.executable), Rule(pattern="two", python=sys.executable)
    for rule in (one, two):
        rules.add(rule)
        made.make(rule, lambda step: None)
    assert made.path(one) == made.path(two)
    for rule, stays in ((one, True), (two, False)):
        rules.remove(rule.pattern)
        made.remove(rule)
        assert made.path(rule).exists() == stays


def test_what_uv_says_is_in_the_error(rules, tmp_path):
    with pytest.raises(BuildFailed, match=r"2\.4"):
        environments(rules, tmp_path).make(Rule(pattern="x", python="2.4"), lambda step: None)


def test_an_image_whose_environment_fails_names_the_command_to_try_at_a_terminal(rules, tmp_path):
    rules.add(Rule(pattern="team/x:*", packages=("a", "b[c]"), python="2.4"))
    with pytest.raises(BuildFailed, match=r"`skysail image add 'team/x:\*' --with 'a,b\[c\]'`\.$"):
        environments(rules, tmp_path).find("team/x:1", lambda step: None)


def test_without_uv_the_fix_is_said(rules, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(BuildFailed, match="pip install uv"):
        Environments(rules, tmp_path / "environments", {"PATH": "/nowhere"}).make(Rule(pattern="x"), print)


def test_a_python_program_of_the_machine_is_not_taken_for_one_of_the_environment(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").touch()
    environment = Environment(folders=(str(tmp_path),))
    assert environment.foreign_program("python3") is None  # it has one
    assert environment.foreign_program("sh") is None  # not a Python program
    assert environment.foreign_program("no-such-program") is None  # said when it is started
    assert environment.foreign_program("/usr/bin/python3") is None  # named on purpose
    assert Environment().foreign_program("python3") is None  # the machine's own programs are this image


@pytest.mark.parametrize("program", ["python3", "pip", "torchrun"])
def test_a_foreign_program_is_named_by_its_path(tmp_path, monkeypatch, program):
    system = tmp_path / "system"
    system.mkdir()
    (system / program).write_text("#!/usr/bin/env python3\n")
    (system / program).chmod(0o755)
    monkeypatch.setattr("skysail.local.images.environments._SYSTEM_PATH", str(system))
    assert Environment(folders=(str(tmp_path),)).foreign_program(program) == str(system / program)


def command(*arguments: str) -> str:
    done = CliRunner().invoke(main.application(), ["image", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_images_are_added_listed_and_removed_by_command(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SKYSAIL_HOME", str(tmp_path / "home"))
    (tmp_path / "code").mkdir()
    copy = f"{tmp_path}/code:/workspace"
    said = command("add", "team/app:*", "--copy", copy, "--entrypoint", "python3 -m 'my app'")
    assert "Images team/app:* run in" in said
    rule = Rules(tmp_path / "home" / "images.json").find("team/app:1")
    assert (rule.copied, rule.entrypoint) == (Copied(f"{tmp_path}/code", "/workspace"), ("python3", "-m", "my app"))
    assert "team/app:*" in command("list")
    command("rm", "team/app:*")
    assert "team/app:*" not in command("list")


@pytest.mark.parametrize("copy", ["/no/such/folder:/workspace", ".:relative", "nothing"])
def test_a_copy_that_cannot_be_is_misuse(tmp_path, monkeypatch, copy):
    monkeypatch.setenv("SKYSAIL_HOME", str(tmp_path / "home"))
    with pytest.raises(Misused, match="FOLDER:/path"):
        command("add", "x", "--copy", copy)


@pytest.mark.parametrize(
    ("rule", "command", "args", "want"),
    [
        ({"default_args": ("sh",)}, (), ("sh", "-c", "true"), ("sh", "-c", "true")),
        ({"default_args": ("sh",)}, (), (), ("sh",)),
        ({"default_args": ("sh",)}, ("ls",), ("-l",), ("ls", "-l")),
        ({"entrypoint": ("serve",), "default_args": ("--port", "1")}, (), (), ("serve", "--port", "1")),
        ({"entrypoint": ("serve",), "default_args": ("--port", "1")}, (), ("--fast",), ("serve", "--fast")),
        ({"entrypoint": ("serve",), "default_args": ("--port", "1")}, ("ls",), (), ("ls",)),
    ],
)
def test_command_and_args_replace_what_the_image_says_as_in_any_container(rule, command, args, want):
    environment = Environment(**rule)
    container = contract.Container(name="c", image="i", command=command, args=args)
    assert argv(container, environment) == want
