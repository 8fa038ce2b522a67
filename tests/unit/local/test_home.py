from __future__ import annotations

import os
from pathlib import Path

import pytest

from skysail.local.errors import Misused, NotRunning
from skysail.local.home import Home


def test_the_named_home_comes_before_the_environments_and_that_before_the_default(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Home.of(Path("/a"), {"SKYSAIL_HOME": "/b"}).root == Path("/a")
    assert Home.of(None, {"SKYSAIL_HOME": "/b"}).root == Path("/b")
    assert Home.of(None, {}).root == tmp_path / ".skysail"


@pytest.mark.parametrize("path", ["/run/user/1000/skysail", "/dev/shm/skysail", "/proc/x", "/sys/x"])
def test_a_home_that_the_hull_would_cover_is_refused(path):
    with pytest.raises(Misused, match="choose another folder"):
        Home.of(Path(path), {})


def test_a_home_is_private(tmp_path):
    home = Home(tmp_path / "home")
    home.prepare()
    home.prepare()
    folders = (home.root, home.pki, home.etcd, home.logs, home.credentials)
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}


def test_one_hull_takes_a_home_and_it_is_free_when_every_copy_of_the_lock_is_closed(tmp_path):
    home = Home(tmp_path)
    assert not home.is_taken()
    lock = home.lock()
    copy = os.dup(lock)
    assert home.is_taken()
    assert home.lock() is None
    os.close(lock)
    assert home.is_taken()
    os.close(copy)
    assert not home.is_taken()


def test_looking_whether_a_home_is_taken_is_never_in_the_way(tmp_path):
    home = Home(tmp_path)
    assert not home.is_taken()
    lock = home.lock()
    assert lock is not None
    os.close(lock)


def test_who_waits_for_a_home_is_told_where_the_logs_are(tmp_path):
    home = Home(tmp_path)
    lock = home.lock()
    with pytest.raises(NotRunning, match="logs"):
        home.wait_until_free(0)
    os.close(lock)
    home.wait_until_free(0)


def test_purging_twice_is_fine(tmp_path):
    home = Home(tmp_path / "home")
    home.prepare()
    home.purge()
    home.purge()
    assert not home.root.exists()
