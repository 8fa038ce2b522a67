"""Files of a volume are given to a pod at any depth that descriptors allow."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from skysail.local.storage import ownership
from tests.support.nested_folders import nested


def test_tree_yields_every_file_once_and_follows_no_link(tmp_path):
    for branch in ("a", "a/b", "c"):
        (tmp_path / "volume" / branch).mkdir(parents=True)
        (tmp_path / "volume" / branch / "file").touch()
    (tmp_path / "volume" / "link").symlink_to("/usr")
    found = [str(Path(f"/proc/self/fd/{descriptor}").readlink()) for descriptor in ownership._tree(tmp_path / "volume")]
    below = ("", "/a", "/a/b", "/a/b/file", "/a/file", "/c", "/c/file", "/link")
    assert sorted(found) == sorted(f"{tmp_path}/volume{path}" for path in below)


def test_tree_nested_too_deeply_raises_an_error_of_the_system(tmp_path):
    with nested(tmp_path, "a", 1500), pytest.raises(OSError, match="nested") as raised:
        for _ in ownership._tree(tmp_path):
            pass
    assert raised.value.errno == errno.ENAMETOOLONG
    assert len(list(Path("/proc/self/fd").iterdir())) < 100
