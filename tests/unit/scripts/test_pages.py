"""Generated parts of pages."""

from __future__ import annotations

from scripts import pages
from skysail.app.kinds import ALL_KINDS

TRAINING_JOB = next(kind for kind in ALL_KINDS if kind.resource.kind == "TrainingJob")


def test_kind_page_new_kind_starts_with_a_page(tmp_path):
    ((path, text),) = pages.kind_pages(tmp_path, [TRAINING_JOB])
    assert path == "docs/kinds/trainingjob.md"
    assert text.startswith("# TrainingJob\n")
    assert "| required fields | `framework`, `image`, `command` |" in text


def test_kind_page_keeps_prose_and_replaces_the_generated_part(tmp_path):
    ((path, fresh),) = pages.kind_pages(tmp_path, [TRAINING_JOB])
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(fresh.replace("`trainingjobs`", "`stale`") + "\nProse.\n")
    ((_, text),) = pages.kind_pages(tmp_path, [TRAINING_JOB])
    assert text == f"{fresh}\nProse.\n"


def test_commands_page_has_every_visible_command_with_its_options():
    text = pages.commands_page()
    for heading in ("## skysail train\n", "## skysail image\n", "### skysail image load\n"):
        assert heading in text
    assert "| `--namespace`, `-n` | `default` | Namespace of the object. |" in text
    assert "skysail ready" not in text


def test_decisions_page_lists_titles_in_order(tmp_path):
    folder = tmp_path / "docs/adr"
    folder.mkdir(parents=True)
    (folder / "0002-b.md").write_text("# 2. Second\n")
    (folder / "0001-a.md").write_text("# 1. First\n")
    lines = pages.decisions_page(tmp_path).splitlines()
    assert lines[-2:] == ["- [1: First](0001-a.md)", "- [2: Second](0002-b.md)"]
