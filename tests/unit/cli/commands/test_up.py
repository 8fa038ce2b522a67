from __future__ import annotations

from pathlib import Path

import pytest

from skysail.cli.commands import up
from skysail.local.cluster.home import Home


@pytest.fixture
def users_home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path


def commands(home: Home) -> list[str]:
    return [line.split("  # ")[0].strip() for line in up._next_steps(home).splitlines()]


def test_the_commands_that_are_shown_need_no_home_where_it_is_the_usual_one(users_home):
    skysail = users_home / "bin" / "skysail"
    skysail.touch(mode=0o755)
    assert commands(Home.of(None, {})) == [
        "skysail kubectl get pods,nodes",
        "skysail status",
        f"export KUBECONFIG={users_home}/.skysail/kubeconfig",
        "skysail down",
    ]


def test_up_with_other_home_or_command_off_path_prints_full_commands(users_home, monkeypatch):
    monkeypatch.setattr("sys.executable", str(users_home / "check out" / ".venv" / "bin" / "python"))
    monkeypatch.chdir(users_home)
    assert commands(Home.of(Path("my clusters/a"), {})) == [
        f"export SKYSAIL_HOME='{users_home}/my clusters/a'",
        "'check out/.venv/bin/skysail' kubectl get pods,nodes",
        "'check out/.venv/bin/skysail' status",
        f"export KUBECONFIG='{users_home}/my clusters/a/kubeconfig'",
        "'check out/.venv/bin/skysail' down",
    ]
