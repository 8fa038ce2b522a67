"""Bytes and files on the disk: of folders, and of files that are deleted and still open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from skysail.local.storage import disk_usage
from skysail.local.storage.disk_usage import DiskUsage
from tests.support.nested_folders import FILE_SIZE, nested


def test_folders_count_every_file_once(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    (one / "deep").mkdir(parents=True)
    two.mkdir()
    (one / "deep" / "a").write_bytes(b"x" * 100_000)
    (two / "same").hardlink_to(one / "deep" / "a")
    (two / "out").symlink_to("/usr")
    (two / "sparse").touch()
    os.truncate(two / "sparse", 2**30)
    found = disk_usage.folders(one, two, tmp_path / "none")
    assert 100_000 <= found.bytes < 200_000
    assert found.files == 5


def test_a_deleted_file_that_is_open_counts_for_its_process():
    script = """
import os, sys, tempfile
file = tempfile.TemporaryFile()
file.write(b"x" * 1_000_000); file.flush(); os.fsync(file.fileno())
print(flush=True); sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        namespace = Path(f"/proc/{child.pid}/ns/pid").stat().st_ino
        found = disk_usage.deleted_files({namespace, 1})
        child.stdin.close()
    assert found[namespace].bytes >= 1_000_000
    assert found[1] == DiskUsage()


def test_a_disk_has_room(tmp_path):
    found = disk_usage.disk(tmp_path)
    assert 0 < found.available <= found.size


def test_folders_nested_thousands_deep_count_their_files(tmp_path):
    with nested(tmp_path, "a", 1500):
        found = disk_usage.folders(tmp_path)
    assert found.bytes >= FILE_SIZE
    assert found.files == 1501


def test_folders_with_a_path_too_long_to_open_count_as_more_than_any_limit(tmp_path):
    with nested(tmp_path, "a" * 200, 30):
        assert disk_usage.folders(tmp_path).bytes >= 2**50
