from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from skysail.cloud import provider
from skysail.local.errors import BuildFailed
from skysail.local.images import environments as environments_module
from skysail.local.images.builder import Builder
from skysail.local.images.environments import Environment, Environments
from skysail.local.images.loaded_images import LoadedImages
from skysail.local.images.rules import CopiedDir, Rule, Rules
from skysail.local.provider.container_run import argv
from tests.support.index import Index


@pytest.fixture
def rules(tmp_path) -> Rules:
    return Rules(tmp_path / "home" / "images.json")


@pytest.fixture
def index():
    with Index(treasure="island = 'found'") as index:
        yield index


def environments(rules: Rules, tmp_path, index: Index | None = None) -> Environments:
    extra = of_uv(tmp_path, index) if index else {}
    return Environments(
        rules, Builder(tmp_path / "environments", {**os.environ, **extra}), LoadedImages(tmp_path / "loaded")
    )


def of_uv(tmp_path, index: Index) -> dict[str, str]:
    """An index that is held is waited for: uv would ask again, and be counted twice."""
    return {"UV_DEFAULT_INDEX": index.url, "UV_CACHE_DIR": str(tmp_path / "uv"), "UV_HTTP_TIMEOUT": "600"}


def ignore(step: str) -> None:
    pass


def said_by(environment: Environment, script: str) -> str:
    argv = [f"{environment.folders[0]}/bin/python3", "-c", script]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


TREASURE = Rule(pattern="island:*", packages=("treasure",))


def test_one_that_nobody_makes_is_not_made(rules, tmp_path):
    assert not environments(rules, tmp_path).is_made(TREASURE)


async def test_packages_come_from_the_users_index(rules, tmp_path, index):
    steps: list[str] = []
    environment = await environments(rules, tmp_path, index).make(TREASURE, steps.append)
    assert said_by(environment, "import treasure; print(treasure.island)") == "found\n"
    assert {step.split()[0] for step in steps} >= {"building", "Resolved", "Prepared", "Installed", "Bytecode", "the"}


async def test_who_asks_meanwhile_waits_for_the_same_one_and_hears_how_far_it_is(rules, tmp_path, index):
    index.open.clear()
    made = environments(rules, tmp_path, index)
    steps: asyncio.Queue[str] = asyncio.Queue()
    first = asyncio.create_task(made.make(TREASURE, ignore))
    await asyncio.to_thread(index.until_asked)
    second = asyncio.create_task(made.make(TREASURE, steps.put_nowait))
    assert await steps.get()
    index.open.set()
    assert await first == await second
    assert len(index.fetched) == 1


async def test_one_who_goes_does_not_take_it_from_the_others(rules, tmp_path, index):
    index.open.clear()
    made = environments(rules, tmp_path, index)
    waiting = [asyncio.create_task(made.make(TREASURE, ignore)) for _ in range(2)]
    await asyncio.to_thread(index.until_asked)
    waiting[0].cancel()
    with suppress(asyncio.CancelledError):
        await waiting[0]
    index.open.set()
    await waiting[1]
    assert made.is_made(TREASURE)
    assert len(index.fetched) == 1


async def test_when_the_last_one_goes_it_is_given_up_and_begins_anew_for_the_next(rules, tmp_path, index):
    index.open.clear()
    made = environments(rules, tmp_path, index)
    waiting = asyncio.create_task(made.make(TREASURE, ignore))
    await asyncio.to_thread(index.until_asked)
    waiting.cancel()
    await asyncio.wait([waiting])
    # Whoever comes now has to wait until the first one has cleaned up, and begins anew.
    index.open.set()
    assert (await made.make(TREASURE, ignore)).folders
    assert len(index.fetched) == 2


async def test_a_download_that_fails_leaves_nothing_and_can_be_tried_again(rules, tmp_path, index):
    index.refuses = True
    made = environments(rules, tmp_path, index)
    with pytest.raises(BuildFailed, match=r"treasure.*403.*\.$"):
        await made.make(TREASURE, ignore)
    assert not made.path(TREASURE).exists()
    index.refuses = False
    await made.make(TREASURE, ignore)
    assert made.is_made(TREASURE)


async def test_one_that_is_made_anew_has_the_versions_that_it_had(rules, tmp_path, index):
    made = environments(rules, tmp_path, index)
    shutil.rmtree((await made.make(TREASURE, ignore)).folders[0])
    index.add("treasure", "2.0", "island = 'moved'")
    assert said_by(await made.make(TREASURE, ignore), "import treasure; print(treasure.island)") == "found\n"
    made.remove(TREASURE)
    assert said_by(await made.make(TREASURE, ignore), "import treasure; print(treasure.island)") == "moved\n"


async def test_a_package_that_was_changed_under_its_version_is_not_installed(rules, tmp_path, index):
    made = environments(rules, tmp_path, index)
    shutil.rmtree((await made.make(TREASURE, ignore)).folders[0])
    index.add("treasure", "1.0", "island = 'forged'")
    shutil.rmtree(tmp_path / "uv")
    with pytest.raises(BuildFailed, match=r"[Hh]ash"):
        await made.make(TREASURE, ignore)


MAKES = """
import asyncio, os, sys
from pathlib import Path
from skysail.local.images.builder import Builder
from skysail.local.images.environments import Environments
from skysail.local.images.loaded_images import LoadedImages
from skysail.local.images.rules import Rule, Rules

folder = Path(sys.argv[1])
builder = Builder(folder / "environments", os.environ)
made = Environments(Rules(folder / "home" / "images.json"), builder, LoadedImages(folder / "loaded"))
asyncio.run(made.make(Rule(pattern="island:*", packages=("treasure",)), lambda step: None))
"""


async def test_after_a_process_that_was_killed_another_begins_anew(rules, tmp_path, index):
    index.open.clear()
    env = {**os.environ, **of_uv(tmp_path, index)}
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", MAKES, str(tmp_path), env=env)
    await asyncio.to_thread(index.until_asked)
    killed.kill()
    await killed.wait()
    made = environments(rules, tmp_path, index)
    assert not made.is_made(TREASURE)
    steps: asyncio.Queue[str] = asyncio.Queue()
    again = asyncio.create_task(made.make(TREASURE, steps.put_nowait))
    first = await steps.get()
    index.open.set()
    await again
    assert made.is_made(TREASURE)
    # Its uv lived on, and until that ended nobody wrote into the same folder.
    assert "another process" in first


async def test_one_whose_last_file_was_cut_short_is_made_anew(rules, tmp_path):
    made = environments(rules, tmp_path)
    plain = Rule(pattern="plain", packages=())
    await made.make(plain, ignore)
    (made.path(plain) / "skysail.json").write_bytes(b"")
    assert not made.is_made(plain)
    await made.make(plain, ignore)
    assert made.is_made(plain)


async def test_an_environment_is_made_once_and_runs_its_own_python(rules, tmp_path):
    made = environments(rules, tmp_path)
    steps: list[str] = []
    environment = await made.find("python:3", steps.append)
    again = await made.find("python:3", steps.append)
    assert environment == again
    assert [step.split()[0] for step in steps] == ["building", "the"]
    folder, base = environment.folders
    script = "import sys; print(sys.prefix, sys.base_prefix)"
    assert said_by(environment, script).split() == [folder, base]
    assert environment.env["PATH"].startswith(f"{folder}/bin:")


async def test_one_that_was_broken_off_is_made_again(rules, tmp_path):
    made = environments(rules, tmp_path)
    rule = rules.find("python:3")
    made.path(rule).mkdir(parents=True)
    (made.path(rule) / "half").touch()
    assert not made.is_made(rule)
    await made.make(rule, ignore)
    assert made.is_made(rule)
    assert not (made.path(rule) / "half").exists()


async def test_equal_packages_share_an_environment_until_the_last_rule_goes(rules, tmp_path):
    made = environments(rules, tmp_path)
    one, two = Rule(pattern="one", python=sys.executable), Rule(pattern="two", python=sys.executable)
    for rule in (one, two):
        rules.add(rule)
        await made.make(rule, ignore)
    assert made.path(one) == made.path(two)
    for rule, stays in ((one, True), (two, False)):
        rules.remove(rule.pattern)
        made.remove(rule)
        assert made.path(rule).exists() == stays


async def test_what_uv_says_is_in_the_error(rules, tmp_path):
    with pytest.raises(BuildFailed, match=r"2\.4"):
        await environments(rules, tmp_path).make(Rule(pattern="x", python="2.4"), ignore)


async def test_an_image_whose_environment_fails_names_the_command_to_try_at_a_terminal(rules, tmp_path):
    copied_dir = CopiedDir("/home/me/code", "/workspace")
    rules.add(
        Rule(pattern="team/x:*", packages=("a", "b[c]"), python="2.4", entrypoint=("run", "it"), copied=(copied_dir,))
    )
    command = "skysail image add 'team/x:*' --with 'a,b[c]' --python 2.4 --entrypoint 'run it' --copy "
    with pytest.raises(BuildFailed, match=re.escape(f"`{command}/home/me/code:/workspace`.") + "$"):
        await environments(rules, tmp_path).find("team/x:1", ignore)


async def test_without_uv_the_fix_is_said(rules, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(BuildFailed, match="pip install uv"):
        await Environments(
            rules, Builder(tmp_path / "environments", {"PATH": "/nowhere"}), LoadedImages(tmp_path / "loaded")
        ).make(Rule(pattern="x"), ignore)


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


@pytest.mark.parametrize(
    ("rule", "command", "args", "want"),
    [
        ({"default_args": ("sh",)}, (), ("sh", "-c", "true"), ("sh", "-c", "true")),
        ({"default_args": ("sh",)}, (), (), ("sh",)),
        ({}, (), ("echo", "x"), ("echo", "x")),
        ({"default_args": ("sh",)}, ("ls",), ("-l",), ("ls", "-l")),
        ({"entrypoint": ("serve",), "default_args": ("--port", "1")}, (), (), ("serve", "--port", "1")),
        ({"entrypoint": ("serve",), "default_args": ("--port", "1")}, (), ("--fast",), ("serve", "--fast")),
        ({"entrypoint": ("serve",), "default_args": ("--port", "1")}, ("ls",), (), ("ls",)),
    ],
)
def test_command_and_args_replace_what_the_image_says_as_in_any_container(rule, command, args, want):
    environment = Environment(**rule)
    container = provider.Container(name="c", image="i", command=command, args=args)
    assert argv(container, environment) == want


async def test_an_environment_can_be_read_by_every_user_of_a_pod(rules, tmp_path, index):
    before = os.umask(0o077)
    try:
        made = await environments(rules, tmp_path, index).make(TREASURE, ignore)
    finally:
        os.umask(before)
    assert closed_to_others(Path(made.folders[0])) == []


def closed_to_others(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if not path.is_symlink() and path.name not in {"skysail.json", ".lock"}]
    return [path for path in files if not path.stat().st_mode & (0o005 if path.is_dir() else 0o004)]


VERSIONED = Rule(pattern="island:*", packages=("treasure",), versioned="treasure")


@pytest.mark.parametrize(
    ("tag", "found", "warning"),
    [
        ("1.0", "old", ""),
        ("2.0.0-cuda", "new", ""),
        ("2", "new", ""),
        ("latest", "new", ""),
        (
            "9.9",
            "new",
            (
                "Image island:9.9 runs with treasure 2.0 on this machine: the package index has no such version for "
                "this Python."
            ),
        ),
    ],
)
async def test_find_honours_the_tag_or_says_what_runs_instead(rules, tmp_path, index, tag, found, warning):
    index.add("treasure", "1.0", "island = 'old'")
    index.add("treasure", "2.0", "island = 'new'")
    rules.add(VERSIONED)
    there = environments(rules, tmp_path, index)
    for _ in range(2):
        environment = await there.find(f"island:{tag}", ignore)
        assert environment is not None
        assert said_by(environment, "import treasure; print(treasure.island)") == f"{found}\n"
        assert environment.warning == warning


async def test_find_a_full_cache_takes_no_further_version(rules, tmp_path, index, monkeypatch):
    monkeypatch.setattr(environments_module, "_MAX_ENVIRONMENTS", 1)
    index.add("treasure", "2.0", "island = 'new'")
    rules.add(VERSIONED)
    there = environments(rules, tmp_path, index)
    assert (await there.find("island:latest", ignore)).warning == ""
    assert "keeps 1 environments" in (await there.find("island:1.0", ignore)).warning
