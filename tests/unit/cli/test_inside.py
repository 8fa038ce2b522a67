"""The commands that lead into the cluster of this machine, where there is none."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from skysail.cli import main


@pytest.mark.parametrize("command", [("open", "web"), ("shell",)])
def test_without_a_cluster_they_say_how_to_get_one(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SKYSAIL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "argv", ["skysail", *command])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"skysail: No cluster runs in {tmp_path}/home: `skysail up` starts one.\n"


@pytest.mark.parametrize("arguments", [("open",), ("open", "web", "--port=0"), ("open", "web", "--port=70000")])
def test_misuse_is_refused(arguments):
    assert CliRunner().invoke(main.application(), list(arguments)).exit_code == 2
