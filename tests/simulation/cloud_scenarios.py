"""What befalls a pod on a node that stands for a cloud: thirteen stories, each of them played with every trouble."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from skysail.claims.types import CLOUD_INSTANCE
from skysail.kube.api.resources import JOB, NAMESPACE, POD
from tests.simulation import runner
from tests.simulation.offload import (
    MAY_LEAVE,
    OPTIONAL,
    RESOURCES,
    VOLATILE,
    CloudFixture,
    CloudOperator,
    apply_pod,
    last_word,
)
from tests.simulation.runner import Scenario
from tests.simulation.spending import Administrator

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.contract.api_dsl import Api
    from tests.simulation.runner import Outcome

    Step = Callable[[Api], Awaitable[None]]


_DEMANDING = {"terminationGracePeriodSeconds": 5, "activeDeadlineSeconds": 4 * 3600}
# Fields that tell which candidate was taken.
CHOICE = frozenset({"candidate", "refusedCandidates", "earlierInstances", "usdPerHour"})
# What the API server's own admission gives to each pod.
_DEFAULT_TOLERATIONS = [
    {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for what in ("not-ready", "unreachable")
]


async def succeed(api: Api) -> None:
    await apply_pod(api, "start=20s,run=60s")


async def begin(api: Api) -> None:
    await apply_pod(api, "start=30s,run=2h")


async def delete(api: Api) -> None:
    (await api.delete(POD, "train")).ok  # noqa: B018 (asserts)


async def begin_and_delete_while_starting(api: Api) -> None:
    await begin(api)
    await _until_claimed(api, {"Launching", "Unknown", "Starting", "Running"})
    await delete(api)


async def begin_and_delete_while_running(api: Api) -> None:
    await begin(api)
    await _until_claimed(api, {"Running"})
    await delete(api)


async def begin_and_force_delete(api: Api) -> None:
    await begin(api)
    await _until_claimed(api, {"Running"})
    (await api.delete(POD, "train", {"gracePeriodSeconds": 0})).ok  # noqa: B018 (asserts)


async def replace(api: Api) -> None:
    """As soon as the old one has gone, whoever still believes in it."""
    await delete(api)
    await api.until_gone(POD, "train")
    await succeed(api)


async def run_an_index(api: Api) -> None:
    (await api.create(JOB, {"metadata": {"name": "job"}})).ok  # noqa: B018 (asserts)
    await apply_pod(api, "start=30s,run=2h", metadata=await of_job(api, index="0"), **_DEMANDING)
    await _until_claimed(api, {"Running"})


async def replace_the_index(api: Api) -> None:
    """As the Job controller does: the next pod is there while the one before is going."""
    await delete(api)
    owned = await of_job(api, index="0")
    await apply_pod(api, "start=20s,run=60s,exit=37", name="next", metadata=owned, **_DEMANDING)


async def run_for_a_job(api: Api) -> None:
    (await api.create(JOB, {"metadata": {"name": "job"}})).ok  # noqa: B018 (asserts)
    await apply_pod(api, "start=30s,run=2h", metadata=await of_job(api), tolerations=_DEFAULT_TOLERATIONS)
    await _until_claimed(api, {"Running"})


async def replace_for_the_job(api: Api) -> None:
    await delete(api)
    owned = await of_job(api)
    await apply_pod(api, "start=20s,run=60s", name="next", metadata=owned, tolerations=_DEFAULT_TOLERATIONS)


async def of_job(api: Api, *, index: str | None = None) -> dict[str, object]:
    uid = (await api.get(JOB, "job")).ok["metadata"]["uid"]
    owner = {"apiVersion": JOB.api_version, "kind": JOB.kind, "name": "job", "uid": uid, "controller": True}
    annotations = {} if index is None else {"batch.kubernetes.io/job-completion-index": index}
    return {"ownerReferences": [owner], "annotations": annotations}


async def be_preempted(api: Api) -> None:
    await apply_pod(api, "start=20s,run=2h,preempt=60s")


async def find_no_capacity(api: Api) -> None:
    await apply_pod(api, "start=20s,run=60s,no-capacity=2")


async def find_the_third_candidate(api: Api) -> None:
    await apply_pod(api, "start=20s,run=60s,no-capacity-types=T4+L4", gpus=1)


async def find_a_dear_instance(api: Api) -> None:
    await apply_pod(api, "start=20s,run=60s,create=dear", gpus=1)


async def find_no_candidate_and_leave(api: Api) -> None:
    (await api.create(JOB, {"metadata": {"name": "job"}})).ok  # noqa: B018 (asserts)
    owned = await of_job(api)
    await apply_pod(api, "no-capacity-types=T4+L4+A10", gpus=1, metadata={**owned, "annotations": {MAY_LEAVE: "true"}})


async def run_for_long(api: Api) -> None:
    await begin(api)
    await _until_claimed(api, {"Running"})


async def end_the_namespace(api: Api) -> None:
    (await api.delete(NAMESPACE, api.namespace)).ok  # noqa: B018 (asserts)


async def _until_claimed(api: Api, states: set[str]) -> None:
    """Or until the claim has ended: a cloud that refuses brings it no further."""
    uid = (await api.get(POD, "train")).ok["metadata"]["uid"]
    await api.until(
        CLOUD_INSTANCE.resource,
        f"{uid}-0",
        lambda claim: bool(claim) and claim.get("status", {}).get("state") in {*states, "Terminated"},
    )


def _scenario(
    name: str,
    *steps: Step,
    is_race: bool = False,
    down: frozenset[int] = frozenset(),
    optional: frozenset[str] = frozenset(),
) -> Scenario:
    return Scenario(
        name=name,
        resources=RESOURCES,
        residents=(Administrator,),
        build=CloudOperator,
        steps=steps,
        is_race=is_race,
        down=down,
        outside=CloudFixture,
        volatile=VOLATILE,
        optional=optional | OPTIONAL,
        # Who races the operator decides what becomes of it.
        last_word=(lambda _: {}) if is_race else last_word,
    )


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        _scenario("launch to success", succeed, delete),
        _scenario("delete while starting", begin_and_delete_while_starting, is_race=True),
        _scenario("delete while running", begin_and_delete_while_running),
        _scenario("force delete", begin_and_force_delete),
        _scenario("re-create under one name", run_for_long, replace),
        _scenario("index of a Job replaced", run_an_index, replace_the_index),
        _scenario("pod of a Job replaced", run_for_a_job, replace_for_the_job),
        _scenario("preempted", be_preempted, delete),
        _scenario("no capacity, then retry", find_no_capacity, delete),
        _scenario("third candidate", find_the_third_candidate, delete),
        # Who finds the dear instance too late, or is refused before, pays for another candidate.
        _scenario("price above the cap", find_a_dear_instance, delete, optional=CHOICE),
        _scenario("no candidate, pod leaves", find_no_candidate_and_leave, delete),
        _scenario("namespace deleted while down", run_for_long, end_the_namespace, down=frozenset({1})),
    )
}


@functools.cache
def reference(name: str) -> Outcome:
    return runner.reference(SCENARIOS[name])
