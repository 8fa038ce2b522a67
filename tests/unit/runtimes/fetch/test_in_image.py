"""A model in the image of its server is not fetched; only its validation is set out."""

from __future__ import annotations

import json

from skysail.runtimes.fetch.cli import main


def test_the_launcher_is_set_out_and_nothing_is_fetched(tmp_path):
    told, launcher, into = tmp_path / "message", tmp_path / "launcher", tmp_path / "store" / "0123456789"
    words = ["--uri", "file:///opt/iris", "--into", str(into), "--name", "iris", "--launcher", str(launcher)]
    assert main(words, {"TERMINATION_LOG": str(told)}) == 0
    assert json.loads(told.read_text()) == {"digest": "", "bytes": 0, "files": 0}
    assert "SCRIPT" in (launcher / "validate.py").read_text()
    assert not into.parent.exists()
