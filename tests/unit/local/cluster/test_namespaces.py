from __future__ import annotations

import pytest

from skysail.local.cluster import namespaces
from skysail.local.errors import MachineUnfit, NamespacesForbidden


def test_a_missing_ip_is_told_before_anything_is_forked(monkeypatch):
    monkeypatch.setattr(namespaces.shutil, "which", lambda *_, **__: None)
    with pytest.raises(MachineUnfit, match="install the package iproute2") as raised:
        namespaces.fork_isolated(lambda: 0)
    assert not isinstance(raised.value, NamespacesForbidden)


def test_ip_is_found_without_the_folders_for_administrators_on_the_path(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert namespaces.ip_program().endswith("/ip")
