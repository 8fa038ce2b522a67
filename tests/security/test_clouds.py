"""A tenant against the simulated clouds: tokens, and pods whose instances fail."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from skysail.app import simulated_clouds
from skysail.cloud.errors import Rejected
from skysail.cloud.simulated.http.client import RemoteAccount
from skysail.cloud.simulated.vendors import MODAL, RUNPOD
from tests.conformance.account_harness import AccountHarness
from tests.security.samples import ON_DEMAND
from tests.support.clouds import Books, at
from tests.support.kubectl import TIMEOUT, get, pod

if TYPE_CHECKING:
    from tests.support.cluster import Cluster
    from tests.support.tenant import Tenant

SLEEP = ("sleep", "1000")


@pytest.fixture(scope="module")
def books(node: Cluster) -> Books:
    return Books(node)


def tokens(node: Cluster, tenant: Tenant) -> dict[str, str]:
    right = simulated_clouds.token(node.home)
    return {
        "none": "",
        "a guess": "guessed",
        "the tenant's own": tenant.token,
        "all but the last letter": right[:-1],
        "one letter more": right + "x",
        "in capitals": right.upper() if right.upper() != right else right.lower(),
        "doubled": right + right,
        "backwards": right[::-1],
        "in quotes": f'"{right}"',
        "no ASCII": "t\u00f6ken",
        "very long": "x" * 6000,
        "of audits": node.home.audit_token.read_text(),
    }


@pytest.mark.parametrize("vendor", [MODAL, RUNPOD], ids=lambda vendor: vendor.name)
async def test_no_other_token_is_taken(node, tenant, books, attempts, vendor):
    before = books.rows(vendor.name)
    for name, token in tokens(node, tenant).items():
        stranger = RemoteAccount(vendor, node.home.simulated_clouds, token)
        calls = (
            stranger.list(),
            stranger.create(AccountHarness(stranger).launch_spec()),
            stranger.terminate("i", 0),
            stranger.get("i"),
        )
        outcomes = []
        for call in calls:
            try:
                await call
                outcomes.append("taken")
            except Rejected as error:
                outcomes.append(error.reason)
        await stranger.close()
        attempts.record(f"tokens at {vendor.name}", name, held=set(outcomes) == {"Unauthorized"}, detail=outcomes)
    assert [row for row in books.rows(vendor.name) if row not in before and row.verb == "create"] == []


def test_socket_token_and_ledgers_belong_to_the_owner_of_the_home(node, attempts):
    home = node.home
    folder = home.root / "simulated"
    for path in (
        home.simulated_clouds,
        home.simulated_cloud_token_file,
        home.audit_token,
        home.control,
        *folder.glob("*.jsonl"),
    ):
        mode = path.stat().st_mode & 0o777
        attempts.record("files of the owner", path.name, held=mode == 0o600, detail=oct(mode))
    held = (home.root.stat().st_mode & 0o077) == 0
    attempts.record("files of the owner", "home", held=held)


IMAGES = ("python:3.12", "python:3.9-slim", "python:3.99", "python:2.7", "python:3", "unknown/image:1", "busybox")
SIMULATED = (
    "create=lost-done",
    "create=500-done",
    "create=malformed",
    "create=dear",
    "create=409",
    "preempt=1s",
    "end=2s",
    "hidden=1s",
    "start=1h",
    "not understood",
)


def failing() -> dict[str, dict]:
    """Pods whose instances do not do what was asked for, by what is wrong."""
    said = ("python", "-c", "print('ahoy')")
    images = {
        f"image {image}": pod(f"i{n}", *(SLEEP if image == "busybox" else said), container={"image": image})
        for n, image in enumerate(IMAGES)
    }
    simulated = {
        f"SKYSAIL_SIMULATE={wish}": pod(
            f"s{n}", *SLEEP, container={"env": [{"name": "SKYSAIL_SIMULATE", "value": wish}]}
        )
        for n, wish in enumerate(SIMULATED)
    }
    programs = {
        "a program that is not there": pod("p0", "no-such-program"),
        "a program that cannot be run": pod("p1", "/etc"),
        "a folder that is not there": pod("p2", *SLEEP, container={"workingDir": "/no/such/folder"}),
        "no command": pod("p3", container={"image": "python:3.12", "command": []}),
    }
    return {**images, **simulated, **programs}


# At runpod a launch whose outcome is unknown is waited for for minutes, so that is tried at modal only.
@pytest.mark.parametrize(
    ("cloud", "without"),
    [pytest.param("modal", (), id="modal", marks=ON_DEMAND), pytest.param("runpod", ("create=",), id="runpod")],
)
def test_whatever_fails_a_pod_can_be_deleted_and_costs_no_more(  # noqa: PLR0913, PLR0917 (fixtures)
    node, namespace, tenant, books, attempts, cloud, without
):
    wrong = {
        name: at(cloud, manifest) for name, manifest in failing().items() if not any(word in name for word in without)
    }
    for manifest in wrong.values():
        done = tenant.apply(manifest)
        assert done.returncode == 0, done.stderr
    names = {manifest["metadata"]["name"]: name for name, manifest in wrong.items()}
    node.until(lambda: has_begun(node, namespace, set(names)), "the pods to be looked at")
    deleted = tenant.kubectl("delete", "pod", *names, TIMEOUT)
    left = {row["metadata"]["name"] for row in get(node, namespace, "pods")["items"]}
    books.until_let_go(namespace)
    for title, name in names.items():
        attempts.record(f"failing pods at {cloud}", name, held=title not in left, detail=deleted.stderr)


def has_begun(node: Cluster, namespace: str, names: set[str]) -> bool:
    """Whether the node has looked at each of them: it has a status, or an event says why there is none."""
    rows = get(node, namespace, "pods")["items"]
    seen = {row["metadata"]["name"] for row in rows if row["status"].get("containerStatuses")}
    events = json.loads(node.kubectl("get", "events", "-n", namespace, "-o", "json").stdout)["items"]
    return names <= seen | {row["involvedObject"]["name"] for row in events if row["reason"] != "Scheduled"}


def test_a_pod_whose_image_names_another_python_runs_and_ends(node, namespace, tenant, books):
    manifest = at(
        "modal", pod("p", "python", "-c", "print('ahoy'); raise SystemExit(37)", container={"image": "python:3.12"})
    )
    assert tenant.apply(manifest).returncode == 0
    node.until(lambda: get(node, namespace, "pod", "p")["status"].get("phase") in ("Failed", "Succeeded"), "its end")
    ended = get(node, namespace, "pod", "p")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert ended["exitCode"] == 37, ended
    assert "ahoy" in tenant.kubectl("logs", "p").stdout
    assert tenant.kubectl("delete", "pod", "p", TIMEOUT).returncode == 0
    books.until_let_go(namespace)
