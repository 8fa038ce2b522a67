"""Images that a pod is the first to ask for, made through the egress proxy from an index of the test.

The index is on this machine's loopback, which is closed to pods; it is open because the user's uv is told to use it.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from skysail.local.addresses import NODE
from tests.support.cluster import Cluster
from tests.support.index import Index
from tests.support.kubectl import apply, get, ok, pod, status, until_phase

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULES = ("shared", "refused", "broken", "inside")
FRAMEWORK = ("torch", "numpy")  # stand-ins, which are small
NO_VERSION = "the package index has no such version for this Python."
NONCE = secrets.token_hex(8)


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    with Index(**dict.fromkeys((*MODULES, *FRAMEWORK), f"nonce = '{NONCE}'")) as index:
        yield index


@pytest.fixture(scope="module")
def node(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One whose user has an index and nothing in their caches."""
    folder = tmp_path_factory.mktemp("cluster")
    cluster = Cluster(folder / "home", with_node=True)
    told = {
        "UV_DEFAULT_INDEX": index.url,
        "UV_HTTP_TIMEOUT": "600",  # what the index holds back must not be asked for again
        "UV_CACHE_DIR": folder / "uv",
        "XDG_CACHE_HOME": folder / "cache",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in told.items():
            patch.setenv(name, str(value))
        with cluster:
            for module in MODULES:
                add(cluster, module)
            yield cluster


@pytest.fixture(autouse=True)
def serves_again(index: Index) -> Iterator[None]:
    """A test that ends early must not leave the next one without an index."""
    yield
    index.refuses = False
    index.open.set()


def add(cluster: Cluster, module: str) -> None:
    """As `skysail image add` does, without making it now."""
    from skysail.local.images.environments import open_environments
    from skysail.local.images.rules import Rule

    rules, _ = open_environments(cluster.home.root, os.environ)
    rules.add(Rule(pattern=f"team/{module}:*", packages=(module,)))


def using(name: str, module: str) -> dict:
    container = {"image": f"team/{module}:1"}
    return pod(name, "python3", "-c", f"import {module}; print({module}.nonce)", container=container)


def events(node: Cluster, namespace: str, name: str) -> list[tuple[str, str]]:
    """Told by the node, and not by the scheduler."""
    rows = get(node, namespace, "events.events.k8s.io")["items"]
    ours = [row for row in rows if (row["regarding"]["name"], row.get("reportingInstance")) == (name, NODE)]
    return [(row["reason"], row["note"]) for row in sorted(ours, key=lambda row: row["eventTime"])]


def waiting(node: Cluster, namespace: str, name: str) -> dict:
    rows = status(node, namespace, name).get("containerStatuses", [{}])
    return rows[0].get("state", {}).get("waiting", {})


def test_two_pods_that_ask_at_once_get_one_environment_and_hear_how_far_it_is(node, namespace, index):
    index.open.clear()
    apply(node, namespace, using("one", "shared"), using("two", "shared"))
    index.until_asked()
    for name in ("one", "two"):
        node.until(lambda name=name: "Pulling" in dict(events(node, namespace, name)), f"{name} to be told")
        node.until(
            lambda name=name: waiting(node, namespace, name).get("reason") == "ContainerCreating", f"{name} to wait"
        )
        node.until(
            lambda name=name: waiting(node, namespace, name).get("message", "").startswith("preparing its image: "),
            f"{name} to show how far its image is",
        )
        refusal = node.kubectl("logs", name, "-n", namespace).stderr
        assert "is waiting to start: ContainerCreating: preparing its image: " in refusal
    index.open.set()
    for name in ("one", "two"):
        until_phase(node, namespace, name, "Succeeded")
        assert ok(node, "logs", name, "-n", namespace) == f"{NONCE}\n"
        node.until(lambda name=name: "Pulled" in dict(events(node, namespace, name)), f"{name} to be told")
        told = events(node, namespace, name)
        assert told[0][1].startswith("main: Image team/shared:1 is being built: ")
        assert [reason for reason, _ in told] == [*["Pulling"] * (len(told) - 1), "Pulled"]
    assert index.fetched.count("shared-1.0-py3-none-any.whl") == 1


def test_a_download_that_fails_is_told_and_tried_again(node, namespace, index):
    index.refuses = True
    apply(node, namespace, using("a", "refused"))
    # By its first name it is called for some seconds only.
    names = {"ErrImagePull", "ImagePullBackOff"}
    node.until(lambda: waiting(node, namespace, "a").get("reason") in names, "the first failure")
    node.until(lambda: waiting(node, namespace, "a").get("reason") == "ImagePullBackOff", "the second failure")
    message = waiting(node, namespace, "a")["message"]
    assert "403" in message
    assert "`skysail image add 'team/refused:*' --with refused`" in message
    node.until(lambda: "Failed" in dict(events(node, namespace, "a")), "an event")
    index.refuses = False
    until_phase(node, namespace, "a", "Succeeded")
    assert ok(node, "logs", "a", "-n", namespace) == f"{NONCE}\n"


def test_an_agent_that_is_killed_meanwhile_leaves_nothing_half_made(node, namespace, index):
    index.open.clear()
    index.asked = threading.Event()
    apply(node, namespace, using("a", "broken"))
    index.until_asked()
    before = node.unit("agent").pid
    node.signal("agent")
    node.until(lambda: node.unit("agent").pid not in {before, None}, "the next agent")
    index.open.set()
    until_phase(node, namespace, "a", "Succeeded")
    assert ok(node, "logs", "a", "-n", namespace) == f"{NONCE}\n"


def test_a_pod_may_ask_the_users_index_and_nothing_else_of_the_machine(node, namespace, index):
    script = f"""
import urllib.error, urllib.request
for url in ("{index.url}/shared/", "http://127.0.0.1:1/"):
    proxy = urllib.request.ProxyHandler({{"http": "http://10.244.0.1:3128"}})
    try:
        print(urllib.request.build_opener(proxy).open(url).status)
    except urllib.error.HTTPError as error:
        print(error.status, error.read().decode())
"""
    env = {"env": [{"name": "no_proxy", "value": ""}, {"name": "NO_PROXY", "value": ""}]}
    apply(node, namespace, pod("a", "python3", "-c", script, container={"image": "python:3", **env}))
    until_phase(node, namespace, "a", "Succeeded")
    served, refused, *_ = ok(node, "logs", "a", "-n", namespace).splitlines()
    assert served == "200"
    assert refused.startswith("403 Pods may not connect to 127.0.0.1:1: ")


def test_an_image_can_be_added_from_inside_through_the_same_way_out(node, index, tmp_path):
    argv = [sys.executable, "-m", "skysail", "shell", f"--home={node.home.root}", "--"]
    argv += [
        "env",
        "no_proxy=",
        "NO_PROXY=",
    ]  # inside, loopback is the local cluster's own, and the index is on the machine's
    argv += [sys.executable, "-m", "skysail", "image", "add", "team/inside:*", "--with", "inside"]
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Images team/inside:* run in" in done.stdout
    assert "inside-1.0-py3-none-any.whl" in index.fetched


@pytest.mark.parametrize(("tag", "warns"), [("1.0", False), ("1.12.0-cuda11.3", True)])
def test_an_image_tag_is_honoured_or_a_warning_names_what_runs_instead(node, namespace, tag, warns):
    image = f"pytorch/pytorch:{tag}"
    manifest = pod("torch", "python3", "-c", "import torch; print(torch.nonce)", container={"image": image})
    apply(node, namespace, manifest)
    until_phase(node, namespace, "torch", "Succeeded")
    node.until(lambda: "Pulled" in dict(events(node, namespace, "torch")), "the events to be written")
    rows = get(node, namespace, "events.events.k8s.io")["items"]
    warnings = [row["note"] for row in rows if (row["type"], row["reason"]) == ("Warning", "ImageVersionMismatch")]
    assert warnings == ([f"main: Image {image} runs with torch 1.0 on this machine: {NO_VERSION}"] if warns else [])
