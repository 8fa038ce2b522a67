"""TrainingJobs whose checkpoints are in a volume of a cloud: the volume goes with the job, or stays.

The pods run on nodes that stand for a cloud, so that each job has a volume there. The cloud writes down which volumes
were deleted, and when.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING

from skysail.claims.tracking.volume_deletions import VolumeDeletions
from skysail.cloud.checkpoint_volumes import volume_id
from skysail.cloud.simulated.account import SimulatedAccount
from skysail.cloud.simulated.instances import disk_name
from skysail.cloud.simulated.ledger import Ledger
from skysail.cloud.simulated.vendors import MODAL
from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.kinds.training.children.progress_endpoint import TrainingConfig
from skysail.kube.api.resources import POD
from tests.simulation import runner
from tests.simulation.clouds import FaultyCloud
from tests.simulation.jobs import JobController, Kubelets
from tests.simulation.runner import Bill, Scenario
from tests.simulation.training import FOREVER, NAME, VOLATILE, TrainingOperator, change, delete, train
from tests.simulation.world import EPOCH

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from skysail.core.actions import DeleteCloudVolume, LaunchInstance, TerminateInstance
    from tests.contract.api_dsl import Api
    from tests.simulation.operator_process import Process
    from tests.simulation.runner import Outcome
    from tests.simulation.watches import Change
    from tests.simulation.world import World

    Step = Callable[[Api], Awaitable[None]]

_NODES = ("node-0", "node-1")


class CloudVolumes:
    """The account, which outlives the operator. `deleted`: when each volume was deleted for the first time."""

    def __init__(self) -> None:
        self.deleted: dict[str, float] = {}
        self.account = SimulatedAccount(MODAL, Ledger(), now=_wall, remove_disk=self._remove)

    async def close(self) -> None:
        await self.account.close()

    def bill(self, world: World) -> Bill:
        return Bill(wrong=list(self._wrong(world)))

    async def _remove(self, disk: str) -> None:
        self.deleted.setdefault(disk, _wall())

    def _wrong(self, world: World) -> Iterator[str]:
        jobs = {each.after["metadata"]["uid"]: each for each in world.history.journal if _is_job(each)}
        volumes = {
            disk_name(MODAL.name, volume_id(job.after["metadata"]["namespace"], uid)): uid for uid, job in jobs.items()
        }
        for disk, at in self.deleted.items():
            if disk not in volumes:
                yield f"foreign volume {disk} was deleted"
            elif not jobs[volumes[disk]].gone:
                yield f"volume {disk} was deleted, and its job is there"
            elif pods := _running(world, volumes[disk], at):
                yield f"volume {disk} was deleted under {pods}"


class VolumeCalls:
    """The cloud calls of a process that launches nothing."""

    def __init__(self, volumes: VolumeDeletions) -> None:
        self._volumes = volumes

    def launch(self, action: LaunchInstance) -> None:
        raise AssertionError(f"{action} in a story without launches")

    def terminate(self, action: TerminateInstance) -> None:
        raise AssertionError(f"{action} in a story without launches")

    def delete_volume(self, action: DeleteCloudVolume) -> None:
        self._volumes.delete(action)


class CloudTrainingOperator(TrainingOperator):
    """An operator that knows the nodes of a cloud, and may delete volumes there."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        account = FaultyCloud(process.outside.account, process.transport)
        volumes = VolumeDeletions({MODAL.name: account}, process.now)
        volumes.on_finished = self.controller.queue.add
        self.reconciler.volume_deletions = volumes.results
        process.executor.clouds = VolumeCalls(volumes)

    def config(self) -> TrainingConfig:
        return TrainingConfig(cloud_nodes=dict.fromkeys(_NODES, MODAL.name), deletable_volumes=frozenset({MODAL.name}))


def _scenario(name: str, *steps: Step) -> Scenario:
    return Scenario(
        name=name,
        resources=(TRAINING_JOB.resource,),
        build=CloudTrainingOperator,
        steps=steps,
        residents=(JobController, Kubelets),
        outside=CloudVolumes,
        volatile=VOLATILE,
    )


_NEVER = {"checkpointDir": "/checkpoints", "checkpoint": {"retain": "Never"}}
_ON_FAILURE = {"checkpointDir": "/checkpoints", "checkpoint": {"retain": "OnFailure"}}
_ALWAYS = {"checkpointDir": "/checkpoints"}

# Scenarios, and whether the volume is deleted.
DELETES = {
    "deleted while it runs": True,
    "deleted after its end": True,
    "succeeded and forgotten": True,
    "failed, volume stays": False,
    "never to be deleted": False,
    "kept after another thought": False,
    "not deleted yet": False,
}
SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        _scenario("deleted while it runs", train(FOREVER, **_NEVER), delete),
        _scenario("deleted after its end", train("* after=60", **_NEVER), delete),
        _scenario(
            "succeeded and forgotten",
            train("* after=60", **_ON_FAILURE, runPolicy={"ttlSecondsAfterFinished": 0}),
        ),
        _scenario(
            "failed, volume stays", train("*/worker-0 exit=1 after=60", **_ON_FAILURE, restartPolicy="Never"), delete
        ),
        _scenario("never to be deleted", train(FOREVER, **_ALWAYS), delete),
        _scenario(
            "kept after another thought",
            train(FOREVER, **_NEVER),
            change(checkpoint={"retain": "Always"}),
            delete,
        ),
        _scenario("not deleted yet", train("* after=60", **_NEVER)),
    )
}


@functools.cache
def reference(name: str) -> Outcome:
    return runner.reference(SCENARIOS[name])


def _is_job(change_: Change) -> bool:
    return change_.resource == TRAINING_JOB.resource and change_.after["metadata"]["name"] == NAME


def _running(world: World, uid: str, at: float) -> list[str]:
    """Pods of the job that ran at that moment."""
    found: dict[str, bool] = {}
    for each in world.history.journal:
        labels = each.after["metadata"].get("labels", {})
        is_own = each.resource == POD and uid in labels.values()
        if is_own and EPOCH.timestamp() + each.at <= at:
            phase = each.after.get("status", {}).get("phase")
            found[each.after["metadata"]["name"]] = not each.gone and phase not in {"Succeeded", "Failed"}
    return [name for name, runs in found.items() if runs]


def _wall() -> float:
    return EPOCH.timestamp() + asyncio.get_running_loop().time()
