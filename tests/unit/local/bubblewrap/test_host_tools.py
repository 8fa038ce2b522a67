from __future__ import annotations

import pytest

from skysail.local.bubblewrap import host_tools
from skysail.local.errors import StartFailed


def test_what_is_missing_is_named_with_its_package(monkeypatch, tmp_path):
    monkeypatch.setattr(host_tools, "_FOLDERS", str(tmp_path))
    for name in ("ip", "setsid", "sh", "setpriv", "prlimit", "unshare", "cat"):
        (tmp_path / name).touch(mode=0o755)
    with pytest.raises(StartFailed, match=r"`bwrap` \(package bubblewrap\), not found on this machine: install it"):
        host_tools.HostTools.find()


def test_a_program_on_the_callers_path_is_found_first(monkeypatch, tmp_path):
    (tmp_path / "bwrap").touch(mode=0o755)
    assert host_tools.HostTools.find(str(tmp_path)).bwrap == str(tmp_path / "bwrap")
