"""The start of a local cluster, with a stand-in for its program: a module that the test writes."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from skysail.local import launcher
from skysail.local.cluster.home import Home
from skysail.local.control_plane.binaries import Binaries
from skysail.local.errors import MachineUnfit, StartFailed
from skysail.local.launcher import LocalClusterSettings


class Harness:
    """A home, and what the next local cluster will do."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = Home(folder / "home")
        self._modules = folder / "modules"
        self._modules.mkdir()
        monkeypatch.setenv("PYTHONPATH", str(self._modules))
        monkeypatch.setattr(launcher, "_PROGRAM", "stand_in")

    def program(self, text: str) -> None:
        opening = f"import os, pathlib, sys\nhome = pathlib.Path({str(self.home.root)!r})\n"
        (self._modules / "stand_in.py").write_text(opening + textwrap.dedent(text))

    def start(self) -> None:
        launcher.start(LocalClusterSettings(home=str(self.home.root), binaries=Binaries({})), report=lambda _: None)


@pytest.fixture
def stage(tmp_path, monkeypatch):
    return Harness(tmp_path, monkeypatch)


def test_a_cluster_that_fails_is_told_with_its_last_words_and_where_to_look(stage):
    stage.program("(home / 'failure').write_text('etcd is ill.'); sys.exit(1)")
    with pytest.raises(StartFailed, match=r"(?s)^etcd is ill\..*/home/logs/cluster\.log"):
        stage.start()
    assert not stage.home.failure.exists()


def test_a_machine_that_is_not_fit_is_told_in_one_sentence(stage):
    stage.program("(home / 'failure').write_text('Install iproute2.'); sys.exit(2)")
    with pytest.raises(MachineUnfit, match=r"^Install iproute2\.$"):
        stage.start()


def test_a_cluster_that_ends_without_a_word_leaves_its_log(stage):
    stage.program("sys.exit('Traceback')")
    with pytest.raises(StartFailed, match=r"exit code 1.*cluster\.log"):
        stage.start()
    assert stage.home.cluster_log.read_text() == "Traceback\n"


def test_when_the_cluster_of_somebody_else_goes_away_an_own_one_is_started(stage, monkeypatch):
    stage.program("sys.exit('ours')")
    stage.home.prepare()
    lock = stage.home.lock()

    at_the_first_pause = iter([lambda: os.close(lock)])
    monkeypatch.setattr(launcher.time, "sleep", lambda _: next(at_the_first_pause, lambda: None)())
    with pytest.raises(StartFailed):
        stage.start()
    assert stage.home.cluster_log.read_text() == "ours\n"


def test_who_was_second_starts_again_when_the_first_one_is_gone(stage):
    stage.program(f"""
        first = home / "first"
        if first.exists():
            sys.exit("second")
        first.touch()
        sys.exit({launcher.ANOTHER_RUNS})
    """)
    with pytest.raises(StartFailed):
        stage.start()
    assert stage.home.cluster_log.read_text() == "second\n"


def test_the_folder_in_which_the_user_stands_holds_none_of_our_modules(stage, tmp_path, monkeypatch):
    stage.program("sys.exit('ours')")
    (tmp_path / "stand_in.py").write_text("raise SystemExit('theirs')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StartFailed):
        stage.start()
    assert stage.home.cluster_log.read_text() == "ours\n"


def test_a_cluster_that_this_process_started_is_collected_when_it_was_stopped(stage, monkeypatch):
    stage.home.prepare()
    child = os.posix_spawn("/bin/sh", ["sh", "-c", "exit"], {})
    stage.home.pid.write_text(str(child))
    lock = stage.home.lock()
    monkeypatch.setattr(launcher.time, "sleep", lambda _: os.close(lock))
    assert launcher.stop(stage.home)
    with pytest.raises(ChildProcessError):
        os.waitpid(child, os.WNOHANG)


def test_what_would_mislead_the_servers_stays_outside():
    kept = {"PATH": "/bin", "HOME": "/home/ann", "LANG": "C", "KUBECONFIG": "x", "MY_ETCD_X": "y"}
    kept |= {"SKYSAIL_ALLOWED_FOLDERS": "/data", "SKYSAIL_ALLOWED_NETWORKS": "192.168.1.0/24"}
    misleading = {
        "HTTPS_PROXY": "http://proxy",
        "no_proxy": "x",
        "All_Proxy": "x",
        "ETCD_NAME": "x",
        "SKYSAIL_HOME": "/other",
        "SKYSAIL_NAMESPACES": "x",
    }
    home = Home(Path("/home/ann/.skysail"))
    assert launcher.environment(kept | misleading, home) == kept | {"SKYSAIL_HOME": "/home/ann/.skysail"}
