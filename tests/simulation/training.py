"""A TrainingJob in the simulation: the real controller, on a cluster with a Job controller and kubelets.

Each story is what befalls one job; all of them are played with every trouble.
"""

from __future__ import annotations

import asyncio
import functools
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from skysail.base.timestamps import timestamp
from skysail.kinds.training.api.training_job import TRAINING_JOB, LatestCheckpoint, Progress
from skysail.kinds.training.caches import Caches
from skysail.kinds.training.children.progress_endpoint import TrainingConfig
from skysail.kinds.training.progress.report import Report
from skysail.kinds.training.progress.status_writer import StatusWriter
from skysail.kinds.training.reconciler import TrainingJobReconciler
from skysail.kube.api.resources import JOB, POD
from skysail.kube.cache.discovery import Discovery
from tests.simulation import runner
from tests.simulation.jobs import DEAD, JobController, Kubelets
from tests.simulation.runner import Scenario
from tests.simulation.world import EPOCH

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.contract.api_dsl import Api
    from tests.simulation.operator_process import Process
    from tests.simulation.runner import Outcome

    Step = Callable[[Api], Awaitable[None]]

NAME = "mnist"
FOREVER = "* after=never"
_REPORT_SECONDS = 5.0
SAVED = LatestCheckpoint(path="/checkpoints/120", step=120, save_time="2026-01-01T01:00:00Z")
# A condition says which time it is told at, and a message names a moment; the rest of the end must be the same.
VOLATILE = frozenset(
    {"startTime", "runTime", "endTime", "completionTime", "startedAt", "finishedAt", "lastUpdatedTime"}
)


class TrainingOperator:
    """An operator with the controller of TrainingJobs, and what it writes down for their pods."""

    def __init__(self, process: Process) -> None:
        self.caches = Caches.create()
        process.fill(self.caches.training)
        for cache in self.caches.children:
            process.fill(cache)
        discovery = self.discover(process)
        self.reconciler = TrainingJobReconciler(
            process.client, self.caches, process.now, config=self.config, serves=discovery.serves
        )
        self.controller = process.control(self.reconciler, self.caches.training)
        self.caches.connect(self.controller, discovery)
        self._records = StatusWriter(process.client, self.caches.training, now=process.now, rng=process.rng)
        process.background += [self._records.run, self._hear]

    def config(self) -> TrainingConfig:
        """Everything is in the cluster."""
        return TrainingConfig()

    async def _hear(self) -> None:
        """Where there is a folder for them, the first attempt tells of one checkpoint, again and again."""
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            for job in self.caches.training.all():
                is_first = [attempt.end_time for attempt in job.status.attempts] == [None]
                if job.spec.checkpoint_dir and is_first and job.status.checkpoint != SAVED:
                    self._records.enqueue(job, Report(progress=Progress(percent=12), checkpoint=SAVED))

    def discover(self, process: Process) -> Discovery:
        """Nobody looks for kinds that need not be there."""
        return Discovery()


def train(*rules: str, **spec: Any) -> Step:
    async def apply(api: Api) -> None:
        manifest = {
            "metadata": {"name": NAME},
            "spec": {
                "framework": "pytorch",
                "image": "trainer:1",
                "command": ["simulate", *rules],
                "workers": 2,
                "checkpointInterval": 1,
                **spec,
            },
        }
        (await api.create(TRAINING_JOB.resource, manifest)).ok  # noqa: B018 (asserts)

    return apply


def change(**spec: Any) -> Step:
    async def patch(api: Api) -> None:
        (await api.merge(TRAINING_JOB.resource, NAME, {"spec": spec})).ok  # noqa: B018 (asserts)

    return patch


async def delete(api: Api) -> None:
    (await api.delete(TRAINING_JOB.resource, NAME)).ok  # noqa: B018 (asserts)


def preempt(pod: str, reason: str = "PreemptionByScheduler") -> Step:
    async def disrupt(api: Api) -> None:
        await _disrupt(api, pod, reason)
        (await api.delete(POD, pod)).ok  # noqa: B018 (asserts)

    return disrupt


def lose_node_of(pod: str) -> Step:
    """Its kubelet is silent from now on, so the pod is told to go and never does."""

    async def lose(api: Api) -> None:
        (await api.merge(POD, pod, {"metadata": {"annotations": {DEAD: "true"}}})).ok  # noqa: B018 (asserts)
        await preempt(pod, "DeletionByTaintManager")(api)

    return lose


def stop_node_of(pod: str) -> Step:
    """Its agent is stopped and started again, and says that the pod ended with it."""

    async def stop(api: Api) -> None:
        await _disrupt(api, pod, "TerminationByKubelet", phase="Failed", reason="Lost")

    return stop


def remove_node_of(pod: str) -> Step:
    """The node is gone for good: the pod is removed by force, and its Job lets it go."""

    async def remove(api: Api) -> None:
        (await api.merge(POD, pod, {"status": {"phase": "Failed"}}, "status")).ok  # noqa: B018 (asserts)
        (await api.delete(POD, pod, {"gracePeriodSeconds": 0})).ok  # noqa: B018 (asserts)

    return remove


def delete_job(name: str, policy: str = "Background") -> Step:
    async def remove(api: Api) -> None:
        (await api.delete(JOB, name, {"propagationPolicy": policy})).ok  # noqa: B018 (asserts)

    return remove


def delete_pod(name: str) -> Step:
    async def remove(api: Api) -> None:
        (await api.delete(POD, name)).ok  # noqa: B018 (asserts)

    return remove


async def delete_and_train_anew(api: Api) -> None:
    """The children of the one before are on their way out, and have the names that the new one needs."""
    await delete(api)
    await train("0/* after=30")(api)


async def _disrupt(api: Api, pod: str, why: str, **status: str) -> None:
    now = EPOCH + timedelta(seconds=asyncio.get_running_loop().time())
    told = {"type": "DisruptionTarget", "status": "True", "reason": why, "message": "It has to give way."}
    told["lastTransitionTime"] = timestamp(now)
    (await api.merge(POD, pod, {"status": {"conditions": [told], **status}}, "status")).ok  # noqa: B018 (asserts)


def _scenario(
    name: str, *steps: Step, volatile: frozenset[str] = frozenset(), optional: frozenset[str] = frozenset()
) -> Scenario:
    return Scenario(
        name=name,
        resources=(TRAINING_JOB.resource,),
        build=TrainingOperator,
        steps=steps,
        residents=(JobController, Kubelets),
        volatile=VOLATILE | volatile,
        optional=optional,
    )


_LIMIT_1 = {"backoffLimit": 1}
_CHIEF = {"framework": "tensorflow", "roles": {"chief": {}, "parameterServers": {"replicas": 1}}}
_SAVES = {"checkpointDir": "/checkpoints"}
_ELASTIC = {"elastic": {"min": 1, "max": 4}}

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        _scenario("success", train()),
        _scenario("success of one worker", train(workers=1)),
        _scenario("chief done, servers end", train("*/chief-0 after=100", FOREVER, **_CHIEF)),
        _scenario("failure, then restart of the gang", train("0/worker-1 exit=3 after=30", "0/* after=never")),
        _scenario(
            "restart of one index", train("*/worker-1#0 exit=7 after=20", "*/chief-0 after=100", FOREVER, **_CHIEF)
        ),
        _scenario("an index that never recovers", train("*/worker-1 exit=7 after=5", FOREVER, **_CHIEF)),
        _scenario("crash loop until no retry is left", train("*/worker-0 exit=1 after=5", runPolicy=_LIMIT_1)),
        _scenario("never restarted", train("*/worker-0 exit=1 after=5", restartPolicy="Never")),
        _scenario(
            "preempted",
            train("0/* after=never", runPolicy={"backoffLimit": 0}),
            preempt("mnist-worker-0-1-0"),
            volatile=frozenset({"failure"}),
        ),
        _scenario(
            "preempted, resumes",
            train("0/* after=never", checkpointDir="/checkpoints"),
            preempt("mnist-worker-0-1-0"),
            volatile=frozenset({"failure"}),
        ),
        _scenario(
            "node lost",
            train("0/* after=never", runPolicy={"backoffLimit": 0}),
            lose_node_of("mnist-worker-0-1-0"),
            remove_node_of("mnist-worker-0-1-0"),
        ),
        _scenario(
            "node stopped, never restarted",
            train("0/* after=never", restartPolicy="Never"),
            stop_node_of("mnist-worker-0-1-0"),
        ),
        _scenario("suspend and resume", train("0/* after=never"), change(suspend=True), change(suspend=False)),
        _scenario("created suspended", train(suspend=True), change(suspend=False)),
        _scenario("scale 2, 4, 1", train(FOREVER), change(workers=4), change(workers=1)),
        _scenario("scale in place", train(FOREVER, **_ELASTIC), change(workers=4), change(workers=1)),
        _scenario(
            "scale in place after another limit",
            train(FOREVER, **_ELASTIC),
            change(runPolicy={"backoffLimit": 9}),
            change(workers=3),
        ),
        _scenario("another image", train("0/* after=never"), change(image="trainer:2")),
        _scenario(
            "wrong, then corrected",
            train("0/* after=never"),
            change(hyperparameters={"layers": [64]}),
            change(hyperparameters={"layers": "64"}),
        ),
        _scenario("wrong while it runs", train(FOREVER), change(hyperparameters={"layers": [64]})),
        _scenario("deadline", train(FOREVER, runPolicy={"activeDeadlineSeconds": 300})),
        _scenario(
            "deadline, and pods are kept",
            train(FOREVER, runPolicy={"activeDeadlineSeconds": 300, "cleanPodPolicy": "None"}),
        ),
        _scenario("forgotten", train(runPolicy={"ttlSecondsAfterFinished": 300})),
        _scenario("cleaned", train(runPolicy={"cleanPodPolicy": "All"})),
        _scenario("kept", train("*/chief-0 after=100", FOREVER, runPolicy={"cleanPodPolicy": "None"}, **_CHIEF)),
        _scenario("deleted", train(FOREVER), delete),
        _scenario("deleted, checkpoints stay", train(FOREVER, **_SAVES), delete),
        _scenario("deleted with its checkpoints", train(FOREVER, **_SAVES, checkpoint={"retain": "Never"}), delete),
        _scenario(
            "failed, checkpoints stay",
            train("*/worker-0 exit=1 after=60", **_SAVES, restartPolicy="Never", checkpoint={"retain": "OnFailure"}),
            delete,
        ),
        _scenario(
            "succeeded, checkpoints go",
            train("* after=60", **_SAVES, checkpoint={"retain": "OnFailure"}),
            delete,
        ),
        _scenario(
            "succeeded, forgotten at once, checkpoints go",
            train(
                "* after=60",
                **_SAVES,
                checkpoint={"retain": "OnFailure"},
                runPolicy={"ttlSecondsAfterFinished": 0},
            ),
        ),
        _scenario(
            "retained after another thought",
            train(FOREVER, **_SAVES, checkpoint={"retain": "Never"}),
            change(checkpoint={"retain": "Always"}),
            delete,
        ),
        _scenario(
            "a stranger deletes a Job",
            train("0/* after=never"),
            delete_job("mnist-worker-0"),
            # Who hears of its pods first names one of them.
            optional=frozenset({"failure"}),
        ),
        _scenario(
            "a stranger deletes a Job and not its pods",
            train("0/* after=never"),
            delete_job("mnist-worker-0", "Orphan"),
        ),
        _scenario(
            "a stranger deletes a pod",
            train("0/* after=never"),
            delete_pod("mnist-worker-0-1-0"),
            volatile=frozenset({"failure"}),
        ),
        _scenario(
            "a stranger deletes a pod that saves",
            train("0/* after=never term=0"),
            delete_pod("mnist-worker-0-1-0"),
        ),
        _scenario(
            "a stranger deletes the only pod, which saves",
            train("0/* after=never term=0", workers=1),
            delete_pod("mnist-worker-0-0-0"),
        ),
        _scenario(
            "the node of one that saves is drained",
            train("0/* after=never term=0", workers=1),
            preempt("mnist-worker-0-0-0", "EvictionByEvictionAPI"),
            volatile=frozenset({"failure"}),
        ),
        _scenario(
            "the node of one that is done is drained",
            train("*/worker-1 after=20", FOREVER),
            preempt("mnist-worker-0-1-0", "EvictionByEvictionAPI"),
        ),
        _scenario("deleted, and trained anew", train("0/* after=never"), delete_and_train_anew),
    )
}

# Stories in which an operator has to see a pod go: who hears of it when it has gone takes it for failed, or for done,
# and cannot tell of one that failed and was replaced.
FLEETING = frozenset(
    {
        "restart of one index",
        "a stranger deletes a pod",
        "a stranger deletes a pod that saves",
        "a stranger deletes the only pod, which saves",
        "the node of one that saves is drained",
    }
)


@functools.cache
def reference(name: str) -> Outcome:
    return runner.reference(SCENARIOS[name])
