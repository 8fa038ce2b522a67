from __future__ import annotations

from skysail.cli.report import local_logs


def test_ends_long_log_begins_with_a_whole_line(tmp_path, monkeypatch):
    monkeypatch.setattr(local_logs, "_MAX_BYTES", 12)
    (tmp_path / "operator.log").write_text("first line\nsecond\nthird\n")
    (tmp_path / "agent.log").write_text("short\n")
    (tmp_path / "audit.jsonl").write_text("{}\n")
    assert dict(local_logs._ends(tmp_path)) == {
        "logs/local/agent.log": "short\n",
        "logs/local/operator.log": "third\n",
    }
