from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from skysail.local.cluster.home import Home
from skysail.local.errors import Misused, Refused


def test_the_named_home_comes_before_the_environments_and_that_before_the_default(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Home.of(Path("/a"), {"SKYSAIL_HOME": "/b"}).root == Path("/a")
    assert Home.of(None, {"SKYSAIL_HOME": "/b"}).root == Path("/b")
    assert Home.of(None, {}).root == tmp_path / ".skysail"


@pytest.mark.parametrize("path", ["/run/user/1000/skysail", "/dev/shm/skysail", "/proc/x", "/sys/x"])
def test_a_home_that_the_cluster_would_cover_is_refused(path):
    with pytest.raises(Misused, match="choose another folder"):
        Home.of(Path(path), {})


def test_a_home_is_private(tmp_path):
    home = Home(tmp_path / "home")
    home.prepare()
    home.prepare()
    folders = (home.root, home.pki, home.etcd, home.logs, home.credentials)
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.prepare()
    return home


def test_one_cluster_takes_a_home_and_it_is_free_when_every_copy_of_the_lock_is_closed(home):
    assert not home.is_taken()
    lock = home.lock()
    copy = os.dup(lock)
    assert home.is_taken()
    assert home.lock() is None
    os.close(lock)
    assert home.is_taken()
    os.close(copy)
    assert not home.is_taken()


def test_looking_whether_a_home_is_taken_is_never_in_the_way(home):
    assert not home.is_taken()
    lock = home.lock()
    assert lock is not None
    os.close(lock)


def test_looking_writes_nothing(tmp_path):
    assert not Home(tmp_path).is_taken()
    assert not Home(tmp_path / "none").is_taken()
    assert list(tmp_path.iterdir()) == []


def test_home_wait_timeout_names_process_to_kill_and_log_file(home):
    home.pid.write_text("4711\n")
    lock = home.lock()
    with pytest.raises(Refused, match=r"(?s)`kill -9 4711`.*cluster\.log"):
        home.wait_until_free(0)
    os.close(lock)
    home.wait_until_free(0)


def test_who_waits_for_a_home_asks_until_it_is_free(home):
    lock = home.lock()
    asked = []

    def ask() -> None:
        asked.append(True)
        if len(asked) == 3:
            os.close(lock)

    home.wait_until_free(5, ask)
    assert len(asked) == 3


def test_a_lock_is_not_the_homes_any_more_when_the_folder_was_deleted_under_it(home):
    lock = home.lock()
    assert home.is_held(lock)
    shutil.rmtree(home.root)
    assert not home.is_held(lock)
    home.prepare()
    assert not home.is_held(lock)
    os.close(lock)


def test_a_folder_that_is_in_other_use_is_neither_taken_nor_deleted(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    for act in (Home(tmp_path).prepare, Home(tmp_path).purge):
        with pytest.raises(Misused, match="not a home of Skysail"):
            act()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_home_behind_a_link_is_deleted_and_made_anew_there(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    home = Home(tmp_path / "link")
    home.prepare()
    home.purge()
    assert not (tmp_path / "disk").exists()
    home.purge()
    home.prepare()
    assert home.mark.exists()


def test_a_link_inside_a_home_is_deleted_and_not_what_it_names(home, tmp_path):
    (tmp_path / "precious").mkdir()
    (home.root / "link").symlink_to(tmp_path / "precious")
    home.purge()
    assert (tmp_path / "precious").exists()


def test_a_home_in_which_a_cluster_runs_is_not_deleted(home):
    lock = home.lock()
    with pytest.raises(Refused, match="`skysail down` stops it"):
        home.purge()
    assert home.pki.exists()
    os.close(lock)


def test_a_home_that_cannot_be_made_is_told_with_what_to_do(tmp_path):
    (tmp_path / "file").touch()
    for home in (Home(tmp_path / "file"), Home(tmp_path / "file" / "below")):
        with pytest.raises(Misused, match=r"cannot be used .*: change its owner, or name another folder"):
            home.prepare()


def test_purging_twice_is_fine(home):
    home.purge()
    home.purge()
    assert not home.root.exists()
