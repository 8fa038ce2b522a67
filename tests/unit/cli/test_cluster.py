"""Commands in messages: they reach the cluster that the user works with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from skysail.base.errors import UserError
from skysail.cli import cluster
from skysail.local.cluster.home import Home
from tests.support.served_api import serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from skysail.kube.client.kubeconfig import Access

MESSAGE = "It exists: run `kubectl delete tj a`. As kubectl prints: kubectl get tj && kubectl get pods"


@pytest.fixture
def access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Access]:
    """Access to a cluster that is the local one."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("SKYSAIL_HOME", str(home))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(Home, "is_taken", lambda _: True)
    with serve(home):
        yield cluster.access(None, None)


def test_with_local_kubectl_at_the_local_cluster_names_the_command_that_reaches_it(access):
    assert cluster.with_local_kubectl(MESSAGE, access) == (
        "It exists: run `skysail kubectl delete tj a`. As kubectl prints: skysail kubectl get tj && "
        "skysail kubectl get pods"
    )
    assert cluster.with_local_kubectl("`skysail kubectl get tj`", access) == "`skysail kubectl get tj`"


def test_with_local_kubectl_if_kubectl_reaches_the_local_cluster_keeps_the_text(access, monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "home" / "kubeconfig"))
    assert cluster.with_local_kubectl(MESSAGE, access) == MESSAGE


def test_with_local_kubectl_at_another_cluster_keeps_the_text(access):
    other = cast("Any", SimpleNamespace(server="https://other"))
    assert (cluster.local_home(access) is None, cluster.local_home(other) is None) == (False, True)
    assert cluster.with_local_kubectl(MESSAGE, other) == MESSAGE


def test_run_client_error_names_the_command_that_reaches_the_local_cluster(access):
    async def call(_: Any) -> None:
        raise UserError("Run `kubectl create namespace a`.")

    with pytest.raises(UserError) as caught:
        cluster.run_client(access, call)
    assert str(caught.value) == "Run `skysail kubectl create namespace a`."
