"""Pods, ModalJobs, TrainJobs and gangs at Modal's wire when the operator dies at any effect.

At most one billable sandbox per claim, and nothing is left over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import modal_crashes, sampling
from tests.support.kubectl import fresh_namespace
from tests.support.modal_crashes import Crashes
from tests.support.proxy import Proxy
from tests.support.wire_proxy import WireProxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster
    from tests.support.modal_crashes import Story

STORIES = {
    "pod": modal_crashes.pod_story(),
    "pod with a GPU": modal_crashes.gpu_pod_story(),
    "ModalJob": modal_crashes.modal_job_story(),
    "TrainJob": modal_crashes.train_job_story(),
    "gang": modal_crashes.gang_story(),
}


@pytest.fixture(scope="module")
def crashes(cluster: Cluster) -> Iterator[Crashes]:
    cluster.start_agent()
    with Proxy(cluster) as api, WireProxy(cluster) as wire:
        scene = Crashes(cluster, api, wire)
        scene.start()
        try:
            yield scene
        finally:
            cluster.stop(modal_crashes.OPERATOR)
            cluster.remove_agent()


@pytest.fixture(autouse=True)
def _in_a_namespace(crashes: Crashes) -> Iterator[None]:
    with fresh_namespace(crashes.cluster) as crashes.namespace:
        yield
        crashes.api.clear()
        crashes.wire.forget()
        crashes.until_clean()


@pytest.mark.on_demand
@pytest.mark.parametrize("where", ["before", "done", "write"])
@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_killed_at_each_effect_every_object_ends_well_and_is_paid_once(crashes, story: Story, where: str, capsys):
    """`before`: the service never got the call. `done`: it executed it, and the reply was lost with the operator."""
    killed = story.play(crashes, where)
    with capsys.disabled():
        print(f"\n{story.kind}: the operator was killed at {killed} effects ({where})")  # noqa: T201 (the result)
    assert killed > 2 or not sampling.IS_WHOLE, "there are that many effects at least"
