"""Folders are deleted at any depth, and links are never followed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skysail.local.files import remove_tree
from tests.support.nested_folders import nested


@pytest.mark.parametrize(("name", "depth"), [("a", 3000), ("a" * 250, 40)])
def test_remove_tree_nested_folders_deletes_all(tmp_path, name, depth):
    folder = tmp_path / "folder"
    folder.mkdir()
    with nested(folder, name, depth):
        remove_tree(folder)
        assert not folder.exists()


def test_remove_tree_many_entries_deletes_all_but_targets_of_links(tmp_path):
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    for branch in ("a", "a/b", "a/b/c", "d", "d/e", "d/f"):
        (folder / branch).mkdir(parents=True)
        (folder / branch / "file").touch()
        (folder / branch / "link").symlink_to(outside)
    os.mkfifo(folder / "d" / "pipe")
    remove_tree(folder)
    assert not folder.exists()
    assert (outside / "kept").exists()


def test_remove_tree_missing_folder_is_fine(tmp_path):
    remove_tree(tmp_path / "none")


def test_remove_tree_of_a_link_raises_and_keeps_its_target(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    with pytest.raises(OSError, match="link"):
        remove_tree(tmp_path / "link")
    remove_tree(tmp_path / "link", ignore_errors=True)
    assert (tmp_path / "folder").is_dir()


def test_remove_tree_undeletable_entry_deletes_the_rest(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    for branch in ("stays", "goes"):
        (folder / branch).mkdir(parents=True)
        (folder / branch / "file").touch()
    open_ = os.open

    def refusing(path: str | Path, *arguments: object, **options: object) -> int:
        if path == "stays":
            raise PermissionError(13, "Permission denied", path)
        return open_(path, *arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refusing)
        with pytest.raises(PermissionError):
            remove_tree(folder)
    assert [entry.name for entry in folder.iterdir()] == ["stays"]
