from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skysail import __version__
from skysail.cli import main


def test_help_lists_every_command_with_a_line():
    shown = CliRunner().invoke(main.application(), ["--help"])
    assert shown.exit_code == 0
    for command in ("up", "down", "status", "get", "why", "logs", "kubectl", "run", "audit-cache"):
        assert f"\n  {command} " in shown.stdout


def test_the_version_is_told():
    shown = CliRunner().invoke(main.application(), ["--version"])
    assert (shown.exit_code, shown.stdout) == (0, f"skysail {__version__}\n")


def test_help_loads_nothing_that_only_a_command_needs():
    script = """
import sys
from skysail import __version__
from skysail.cli import main
sys.argv = ["skysail", "--help"]
try:
    main.main()
except SystemExit:
    pass
print("loaded:", *sorted({name.split(".")[0] for name in sys.modules}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert loaded & {"aiohttp", "asyncio", "cryptography", "msgspec", "rich", "yaml"} == set()
    assert "typer" in loaded


@pytest.mark.parametrize("command", ["status", "kubectl"])
def test_a_command_that_needs_a_cluster_says_how_to_get_one(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SKYSAIL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "argv", ["skysail", command])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    want = f"skysail: No cluster runs in {tmp_path}/home: `skysail up` starts one.\n"
    assert capsys.readouterr().err == want


@pytest.mark.parametrize("command", ["why", "logs", "get"])
def test_a_command_that_needs_any_cluster_says_how_to_get_one(command, tmp_path, monkeypatch, capsys):
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SKYSAIL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "argv", ["skysail", command, "mnist"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"Cannot read the kubeconfig {tmp_path}/.kube/config" in said
    assert "start a local cluster with `skysail up`" in said


def test_a_wrong_flag_is_misuse():
    assert CliRunner().invoke(main.application(), ["up", "--no-such-flag"]).exit_code == 2


@pytest.mark.parametrize("arguments", [["up"], ["down", "--purge"]])
def test_a_folder_that_is_in_other_use_stays_as_it_is(arguments, tmp_path, monkeypatch, capsys):
    (tmp_path / "thesis.tex").write_text("precious")
    monkeypatch.setattr(sys, "argv", ["skysail", *arguments, "--home", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    assert "not a home of Skysail" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("group", [[], ["image"], ["dev"], ["crds"]], ids=" ".join)
def test_help_cuts_no_line_of_the_list_of_commands(group):
    done = CliRunner().invoke(main.application(), [*group, "--help"])
    assert done.exit_code == 0
    assert "..." not in done.output.partition("Commands:")[2]


def test_mistyped_command_gets_a_suggestion():
    done = CliRunner().invoke(main.application(), ["statsu"])
    assert (done.exit_code, "Did you mean 'status'?" in done.output) == (2, True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_for_each_shell(shell):
    env = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-m", "skysail", "--show-completion", shell]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "skysail" in done.stdout


def test_the_command_is_a_plugin_of_kubectl():
    scripts = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["kubectl-skysail"] == scripts["skysail"]
