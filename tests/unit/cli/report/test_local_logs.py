from __future__ import annotations

import pytest

from skysail.cli.report import local_logs
from skysail.cli.report.local_logs import UnreadableLog


def test_ends_long_log_begins_with_a_whole_line(tmp_path, monkeypatch):
    monkeypatch.setattr(local_logs, "_MAX_BYTES", 12)
    (tmp_path / "operator.log").write_text("first line\nsecond\nthird\n")
    (tmp_path / "agent.log").write_text("short\n")
    (tmp_path / "audit.jsonl").write_text("{}\n")
    assert dict(local_logs._ends(tmp_path)) == {
        "logs/local/agent.log": "short\n",
        "logs/local/operator.log": "third\n",
    }


def test_ends_log_that_cannot_be_read_names_file_and_fix(tmp_path):
    (tmp_path / "operator.log").mkdir()
    with pytest.raises(
        UnreadableLog, match=r"operator.log cannot be read: Is a directory. Run the command as the user"
    ):
        dict(local_logs._ends(tmp_path))
