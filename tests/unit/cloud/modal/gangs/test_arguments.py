"""Arguments of a gang's Function."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from skysail.cloud.account import GpuRequest, Member
from skysail.cloud.errors import Rejected
from skysail.cloud.modal import identity
from skysail.cloud.modal.account import TIMINGS
from skysail.cloud.modal.gangs.arguments import LIMITS, gang_arguments
from skysail.cloud.modal.launch import LaunchConfig
from skysail.cloud.modal.prices import PriceTable
from skysail.cloud.provider import File, Mount, ProjectedFiles, ResourceLimits, Volume
from tests.unit.cloud.modal.specs import CLUSTER, launch_spec

CONFIG = LaunchConfig(prices=PriceTable(), timings=TIMINGS, capacity_timeout=60.0)
NODE = GpuRequest("H100", 8)


def spec(*containers, pod=None, **fields):
    members = []
    for rank, container in enumerate(containers or ({}, {})):
        one = launch_spec(container=container, pod={"name": f"p-{rank}", "hostname": f"p-{rank}", **(pod or {})})
        members.append(one.members[0])
    return replace(launch_spec(gpus=NODE, **fields), members=tuple(members))


def arguments(found):
    return gang_arguments(found, CONFIG, now=1000.0, nonce="n-1")


def programs(found):
    return json.loads(arguments(found).env["SKYSAIL_GANG"])


def test_app_belongs_to_the_claim_and_carries_what_an_inventory_needs():
    found = arguments(spec())
    assert found.app == "op-0b7e5a70-gang.claim-1"
    assert identity.is_gang(found.app, CLUSTER)
    assert not identity.is_gang(identity.app_name(CLUSTER, "gang"), CLUSTER)
    tags = identity.decode_tags(identity.with_call(found.tags, "ap-1", "fc-1"))
    assert (tags.claim, tags.cluster, tags.members, tags.call) == ("claim-1", CLUSTER, 2, "fc-1")
    assert tags.usd_per_hour == pytest.approx(2 * PriceTable().usd_per_hour(NODE, ResourceLimits(), ""))


def test_ranks_share_what_is_equal_and_keep_their_own():
    own = [{"env": (("SHARED", "s"), ("RANK", str(rank))), "command": ("run", str(rank))} for rank in range(2)]
    found = arguments(spec(*own))
    assert found.env["SHARED"] == "s"
    assert "RANK" not in found.env
    rows = json.loads(found.env["SKYSAIL_GANG"])["ranks"]
    assert [row["env"] for row in rows] == [{"RANK": "0"}, {"RANK": "1"}]
    assert [row["argv"] for row in rows] == [None, ["run", "1"]]


def test_ranks_know_each_other_by_the_names_of_their_pods():
    names = programs(spec(pod={"subdomain": "peers"}))["names"]
    assert "p-1.peers" in names[1]


def test_one_pod_with_replicas_has_placeholders_and_no_names():
    found = programs(replace(launch_spec(gpus=NODE, replicas=3), members=spec().members[:1]))
    assert (len(found["ranks"]), found["has_placeholders"], found["names"]) == (3, True, [])
    assert not programs(spec())["has_placeholders"]


@pytest.mark.parametrize(
    ("gpus", "size", "words"),
    [
        (None, 2, "requests no GPU: request 8 H100"),
        (GpuRequest("H100", 4), 2, "requests 4 H100: request 8 H100"),
        (GpuRequest("A10G", 8), 2, "request 4 A10G"),
        (NODE, 33, "at most 32 pods"),
        (GpuRequest("A10", 4), 2, ""),
        (NODE, 32, ""),
    ],
)
def test_limits_of_modal_are_told_with_the_fix(gpus, size, words):
    found = LIMITS.problem("modal", gpus.type if gpus else "", gpus.count if gpus else 0, size)
    assert words in found
    assert bool(found) == bool(words)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"image": "other:1"}, "another image"),
        ({"working_dir": "/x"}, "working directory"),
        ({"limits": ResourceLimits(cpu=64.0)}, "other resources"),
    ],
)
def test_ranks_that_need_different_machines_are_rejected(other, words):
    with pytest.raises(Rejected, match=words) as rejected:
        arguments(spec({}, other))
    assert rejected.value.reason == "GangMembersDiffer"


def test_files_are_the_same_for_all_ranks():
    volumes = [Volume("v", ProjectedFiles((File("f", text),))) for text in (b"a", b"b")]
    found = spec(*[{"mounts": (Mount(volume="v", path="/data"),)}] * 2)

    def with_volumes(*own):
        pairs = zip(found.members, own, strict=True)
        members = tuple(Member(replace(each.pod, volumes=(own,)), each.container) for each, own in pairs)
        return replace(found, members=members)

    assert "SKYSAIL_FILES" in arguments(with_volumes(volumes[0], volumes[0])).env
    with pytest.raises(Rejected, match="other files"):
        arguments(with_volumes(*volumes))


def test_programs_that_are_too_large_are_rejected_with_the_fix():
    own = [{"env": (("LARGE", f"{rank}" * 60_000),)} for rank in range(2)]
    with pytest.raises(Rejected, match="use the same ones"):
        arguments(spec(*own))


def test_gang_above_the_cap_is_rejected():
    with pytest.raises(Rejected, match="above the cap"):
        arguments(spec(max_usd_per_hour=60.0))
