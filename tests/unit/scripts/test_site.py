"""The documentation site: every page is listed, every link leads to a file."""

from __future__ import annotations

import tomllib

from scripts import site


def test_problems_of_our_documents_are_none():
    assert site.problems(site.ROOT, tomllib.loads(site.CONFIG.read_text())) == []


def test_problems_name_broken_links_folders_and_unlisted_pages(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(
        "[gone](docs/gone.md) [folder](docs) [web](https://example.com) `[no](link.md)`\n"
    )
    (tmp_path / "docs/new.md").write_text("# New\n\n```\n[no](link.md)\n```\n")
    config = {"project": {"nav": [{"Start": [{"Home": "README.md"}, "docs/old.md"]}]}}
    assert site.problems(tmp_path, config) == [
        "README.md links to docs/gone.md, which does not exist.",
        "README.md links to the folder docs: link to a file in it.",
        "docs/new.md is in no part of the navigation: add it to zensical.toml.",
        "zensical.toml lists docs/old.md, which is not a page.",
    ]


def test_problems_decisions_need_no_entry(tmp_path):
    (tmp_path / "docs/adr").mkdir(parents=True)
    (tmp_path / "docs/adr/0001-a.md").write_text("# 1. A\n")
    assert site.problems(tmp_path, {"project": {"nav": []}}) == []


def test_stage_copies_pages_and_linked_files_and_removes_old_ones(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text("[values](../values.yaml) ![flow](flow.svg)\n")
    (tmp_path / "values.yaml").write_text("a: 1\n")
    (tmp_path / "docs/flow.svg").write_text("<svg/>\n")
    (tmp_path / "secret.txt").write_text("not linked\n")
    folder = tmp_path / "build"
    folder.mkdir()
    (folder / "old.md").write_text("old\n")
    site.stage(tmp_path, folder)
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == {"docs/a.md", "docs/flow.svg", "values.yaml"}
