from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from skysail.cli import main
from skysail.local.errors import Misused
from skysail.local.images.rules import CopiedDir, Rules
from tests.support.index import Index


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
    assert rule.copied == (CopiedDir(f"{tmp_path}/code", "/workspace"),)
    assert rule.entrypoint == ("python3", "-m", "my app")
    assert "team/app:*" in command("list")
    command("rm", "team/app:*")
    assert "team/app:*" not in command("list")


@pytest.mark.parametrize(
    ("copy", "words"),
    [
        ("/no/such/folder:/workspace", "folder /no/such/folder not found"),
        (".:app", r"app is not an absolute path\. Write \.:/app"),
        ("nothing", "must be FOLDER:/path"),
    ],
)
def test_a_copy_that_cannot_be_is_misuse(tmp_path, monkeypatch, copy, words):
    monkeypatch.setenv("SKYSAIL_HOME", str(tmp_path / "home"))
    with pytest.raises(Misused, match=words):
        command("add", "x", "--copy", copy)


def test_every_copy_and_the_cmd_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SKYSAIL_HOME", str(tmp_path / "home"))
    command("add", "x", "--copy", f"{tmp_path}:/a", "--copy", f"{tmp_path}:/b/", "--cmd", "python3 -i")
    rule = Rules(tmp_path / "home" / "images.json").find("x")
    assert rule.copied == (CopiedDir(str(tmp_path), "/a"), CopiedDir(str(tmp_path), "/b"))
    assert rule.default_args == ("python3", "-i")
    assert "python3 -i" in command("list")


def test_two_copies_to_one_path_are_misuse(tmp_path, monkeypatch):
    monkeypatch.setenv("SKYSAIL_HOME", str(tmp_path / "home"))
    with pytest.raises(Misused, match="/a more than once"):
        command("add", "x", "--copy", f"{tmp_path}:/a", "--copy", f"{tmp_path}:/a/")


def test_packages_of_a_requirements_file_are_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("SKYSAIL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    (tmp_path / "requirements.txt").write_text("treasure  # ours\n")
    with Index(treasure="island = 'found'") as index:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
        command("add", "team/app:*", "-r", str(tmp_path / "requirements.txt"))
    rule = Rules(tmp_path / "home" / "images.json").find("team/app:1")
    assert rule is not None
    assert rule.packages == ("treasure",)


@pytest.mark.parametrize(
    "target", ["/", "/usr", "/usr/", "/bin", "/etc", "/proc/sys", "//usr/bin", "/workspace/../lib", "/dev"]
)
def test_a_copy_does_not_hide_the_system(tmp_path, monkeypatch, target):
    monkeypatch.setenv("SKYSAIL_HOME", str(tmp_path / "home"))
    with pytest.raises(Misused, match="would hide system files"):
        command("add", "x", "--copy", f"{tmp_path}:{target}")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("q:*", "--entrypoint", "unclosed 'quote"), "No closing quotation"),
        (("", "--with", "six"), "The image pattern is empty"),
        (("  ",), "The image pattern is empty"),
        (("q:*", "--with=--index-url=http://x"), "--with '--index-url=http://x' is not a package"),
        (("q:*", "--with=six, -r"), "--with '-r' is not a package"),
        (("q:*", "--with=six\n--index-url=http://x"), "is not a package"),
        (("q:*", "--with=six\0"), "is not a package"),
    ],
)
def test_what_cannot_be_meant_is_misuse_and_leaves_no_rule(tmp_path, monkeypatch, arguments, why):
    monkeypatch.setenv("SKYSAIL_HOME", str(tmp_path / "home"))
    with pytest.raises(Misused, match=why):
        command("add", *arguments)
    assert Rules(tmp_path / "home" / "images.json").own() == ()


def test_who_interrupts_it_leaves_nothing_half_made_and_no_rule(tmp_path):
    with Index(treasure="") as index:
        index.open.clear()
        env = {
            **os.environ,
            "SKYSAIL_HOME": str(tmp_path / "home"),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "UV_DEFAULT_INDEX": index.url,
            "UV_HTTP_TIMEOUT": "600",
        }
        argv = [sys.executable, "-m", "skysail", "image", "add", "island:*", "--with", "treasure"]
        with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as adding:
            index.until_asked()
            adding.send_signal(signal.SIGINT)
            said, _ = adding.communicate()
    assert adding.returncode == 130, said
    assert "Traceback" not in said
    assert Rules(tmp_path / "home" / "images.json").own() == ()
    left = (tmp_path / "cache" / "skysail" / "environments").iterdir()
    assert [path.suffix for path in left] == [".lock"]


def test_images_are_listed_for_programs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SKYSAIL_HOME", str(tmp_path / "home"))
    command("add", "team/app:*", "--cmd", "sh")
    assert command("list", "-o", "name").splitlines()[0] == "team/app:*"
    [first, *rest] = json.loads(command("list", "-o", "json"))["rules"]
    assert (first["pattern"], first["builtIn"], first["default_args"]) == ("team/app:*", False, ["sh"])
    assert all(rule["builtIn"] for rule in rest)
