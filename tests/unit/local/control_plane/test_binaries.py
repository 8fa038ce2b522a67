from __future__ import annotations

from pathlib import Path

import pytest

from skysail.local.control_plane import binaries, build
from skysail.local.control_plane.flags import Component
from skysail.local.errors import Misused


def around(tmp_path: Path, **env: str) -> build.BuildDependencies:
    return build.BuildDependencies(env=env, cache=tmp_path / "cache", report=lambda _: None, sleep=lambda _: None)


def folder_with(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    return folder


def test_one_named_binary_is_all_five(tmp_path):
    binary = tmp_path / "kubeplane"
    binary.touch()
    found = binaries.locate(around(tmp_path, SKYSAIL_KUBE_BIN=str(binary)))
    assert found.commands == {component: (str(binary), component.value) for component in Component}
    assert found.note == ""


def test_a_named_folder_holds_one_binary_each(tmp_path):
    folder = folder_with(tmp_path / "bin", *Component)
    found = binaries.locate(around(tmp_path, SKYSAIL_KUBE_BIN=str(folder)))
    assert found.commands == {component: (f"{folder}/{component}",) for component in Component}


def test_envtests_folder_lacks_two_and_that_is_said(tmp_path):
    folder = folder_with(tmp_path / "bin", "etcd", "kube-apiserver", "kubectl")
    found = binaries.locate(around(tmp_path, KUBEBUILDER_ASSETS=str(folder)))
    assert set(found.commands) == {Component.ETCD, Component.API_SERVER, Component.KUBECTL}
    assert found.note == (
        "KUBEBUILDER_ASSETS has no kube-controller-manager and no kube-scheduler: "
        "the cluster runs without their functions."
    )


def test_a_folder_without_an_api_server_is_refused(tmp_path):
    folder = folder_with(tmp_path / "bin", "etcd", "kubectl")
    with pytest.raises(Misused, match="kube-apiserver was not found there"):
        binaries.locate(around(tmp_path, SKYSAIL_KUBE_BIN=str(folder)))


def test_ours_is_taken_from_the_cache_where_nothing_is_named(tmp_path):
    built = tmp_path / "cache" / "kubeplane" / build.key() / "kubeplane"
    built.parent.mkdir(parents=True)
    built.touch()
    assert binaries.locate(around(tmp_path)).commands[Component.ETCD] == (str(built), "etcd")
