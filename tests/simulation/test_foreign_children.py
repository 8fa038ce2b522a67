"""A child in another namespace has no effect: for every kind, and for every type of child that fits.

Anybody who may create an object can name the UID of an object in another namespace as its owner, or write it into a
label. The run with such children must be the run without them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from skysail.app.kinds import ALL_KINDS, COMPATIBLE_KINDS
from skysail.claims.limits.offload_policy import OFFLOAD_POLICY
from skysail.claims.limits.spend_account import SPEND_ACCOUNT
from skysail.claims.types import CLOUD_INSTANCE
from skysail.kinds.modal_endpoints.types import MODAL_ENDPOINT, MODAL_FUNCTION
from skysail.kinds.serving.api.types import ML_MODEL, MODEL_DEPLOYMENT
from skysail.kinds.training.api.modal_job import MODAL_JOB
from skysail.kinds.training.api.train_job import TRAIN_JOB
from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.kinds.training.scheduling.kueue import WORKLOAD
from skysail.kinds.training.scheduling.volcano import POD_GROUP
from skysail.kube.api.resources import (
    CONFIG_MAP,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    HORIZONTAL_POD_AUTOSCALER,
    JOB,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SERVICE,
)
from tests.contract.api_dsl import Api
from tests.simulation import cloud_scenarios, gangs, runner, serving, test_fleet, training
from tests.simulation.deployments import REPLICA_SET
from tests.simulation.fleet import FLEET
from tests.simulation.foreign_children import ELSEWHERE, foreign_children, nothing_elsewhere
from tests.simulation.offload import apply_pod
from tests.simulation.runner import Scenario
from tests.simulation.translated import EndpointOperator, TranslatingOperator

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from skysail.kube.api.crd import CustomKind
    from skysail.kube.api.resources import Resource
    from tests.simulation.runner import Outcome

    Step = Callable[[Api], Awaitable[None]]

_WITHOUT_CHILDREN = {CLOUD_INSTANCE, OFFLOAD_POLICY, SPEND_ACCOUNT}


class Case(msgspec.Struct, frozen=True):
    """A scenario with `before` and `after` the moment at which the children of the other namespace appear."""

    scenario: Scenario
    root: Resource
    name: str
    before: tuple[Step, ...]
    after: tuple[Step, ...]
    children: tuple[Resource, ...]


def _created_and_deleted(kind: CustomKind, spec: dict[str, Any], scenario: Scenario, *children: Resource) -> Case:
    async def create(api: Api) -> None:
        (await api.create(kind.resource, {"metadata": {"name": "a"}, "spec": spec})).ok  # noqa: B018 (asserts)

    async def delete(api: Api) -> None:
        (await api.delete(kind.resource, "a")).ok  # noqa: B018 (asserts)

    return Case(scenario, kind.resource, "a", (create,), (delete,), children)


def _translated() -> dict[str, Case]:
    """Kinds that the training engine runs, and endpoints."""
    runs = msgspec.structs.replace(
        training.SCENARIOS["success"],
        resources=(TRAINING_JOB.resource, MODAL_JOB.resource, TRAIN_JOB.resource),
        build=TranslatingOperator,
    )
    answers = Scenario(
        name="endpoints",
        resources=(MODAL_ENDPOINT.resource, MODAL_FUNCTION.resource, REPLICA_SET),
        build=EndpointOperator,
        steps=(),
        residents=serving.SCENARIOS["served"].residents,
    )
    endless = {"image": "python:3.11", "command": ["simulate", "* after=never"]}
    code = {"image": "python:3.11", "handler": "app.main", "code": {"inline": "def main(): pass"}}
    of_endpoints = (DEPLOYMENT, POD, SERVICE, CONFIG_MAP)
    train_job = {
        "runtimeRef": {"name": "modal-pytorch-runtime"},
        "trainer": {"image": "python:3.11", "command": ["simulate", "* after=never"]},
    }
    of_jobs = (TRAINING_JOB.resource, JOB, POD)
    return {
        "ModalJob": _created_and_deleted(MODAL_JOB, endless, runs, *of_jobs),
        "TrainJob": _created_and_deleted(TRAIN_JOB, train_job, runs, *of_jobs),
        "ModalEndpoint": _created_and_deleted(MODAL_ENDPOINT, code, answers, *of_endpoints),
        "ModalFunction": _created_and_deleted(MODAL_FUNCTION, code, answers, *of_endpoints),
    }


_ONCE = "0/* after=never"
_TRAINING = (JOB, POD, SERVICE, CONFIG_MAP)
_SERVING = (
    JOB,
    POD,
    DEPLOYMENT,
    SERVICE,
    CONTROLLER_REVISION,
    CONFIG_MAP,
)
_GANG = gangs.SCENARIOS["admitted"]
_SECOND_MODEL = "https://models.example.com/good/2.tar.gz"


def _cases() -> dict[str, Case]:
    job, model = TRAINING_JOB.resource, MODEL_DEPLOYMENT.resource
    kueue = gangs.all_of(gangs.install(gangs.WORKLOAD, gangs.FLAVOR), gangs.add_flavor)
    queued, grouped = {"scheduling": {"gang": "kueue", "queue": "t"}}, {"scheduling": {"gang": "volcano"}}
    trains = training.SCENARIOS["success"]
    serves = serving.SCENARIOS["served"]
    return {
        "TrainingJob": Case(
            trains, job, training.NAME, (training.train(_ONCE),), (training.change(image="trainer:2"),), _TRAINING
        ),
        "TrainingJob that fails": Case(
            trains,
            job,
            training.NAME,
            (training.train("0/* after=9000", "1/* exit=1 after=9000", runPolicy={"backoffLimit": 1}),),
            (training.change(suspend=True), training.change(suspend=False)),
            _TRAINING,
        ),
        "TrainingJob deleted": Case(
            trains, job, training.NAME, (training.train(training.FOREVER),), (training.delete,), _TRAINING
        ),
        "TrainingJob in a Workload": Case(
            _GANG,
            job,
            training.NAME,
            (kueue, training.train(_ONCE, **queued)),
            (gangs.evict,),
            (JOB, POD, WORKLOAD),
        ),
        "TrainingJob in a PodGroup": Case(
            _GANG,
            job,
            training.NAME,
            (gangs.install(POD_GROUP), training.train(_ONCE, **grouped)),
            (training.change(scheduling=None),),
            (JOB, POD, POD_GROUP),
        ),
        "ModelDeployment": Case(serves, model, serving.NAME, (serving.deploy(),), (serving.update(),), _SERVING),
        "ModelDeployment whose update crashes": Case(
            serves, model, serving.NAME, (serving.deploy(),), (serving.update("crash"),), _SERVING
        ),
        "ModelDeployment scaled by load": Case(
            serves,
            model,
            serving.NAME,
            (serving.deploy(autoscale=True),),
            (serving.change(autoscale=False),),
            (*_SERVING, HORIZONTAL_POD_AUTOSCALER),
        ),
        "ModelDeployment deleted": Case(
            serves, model, serving.NAME, (serving.deploy(),), (serving.delete(model),), _SERVING
        ),
        "MLModel": Case(
            serves,
            ML_MODEL.resource,
            serving.NAME,
            (serving.download(),),
            (serving.change(ML_MODEL, modelURL=_SECOND_MODEL),),
            (*_SERVING, PERSISTENT_VOLUME_CLAIM),
        ),
        "Fleet": Case(
            test_fleet.SCENARIOS["scale up"], FLEET, "a", (test_fleet.order,), (test_fleet.enlarge,), (CONFIG_MAP, POD)
        ),
        **_translated(),
    }


CASES = _cases()
_RUNS = [(name, child) for name, case in CASES.items() for child in case.children]


@functools.cache
def _undisturbed(name: str) -> Outcome:
    return _play(CASES[name], nothing_elsewhere())


def _play(case: Case, meanwhile: Step) -> Outcome:
    steps = (*case.before, meanwhile, *case.after)
    scenario = msgspec.structs.replace(case.scenario, steps=steps, outside=None)
    return runner.play(scenario, None)


@pytest.mark.parametrize(("name", "child"), _RUNS, ids=[f"{name}: {child.kind}" for name, child in _RUNS])
def test_a_child_in_another_namespace_has_no_effect(name: str, child: Resource) -> None:
    case, expected = CASES[name], _undisturbed(name)
    found = _play(case, foreign_children(case.root, case.name, child))
    assert (_here(found.end), _here(found.history)) == (_here(expected.end), _here(expected.history))
    assert [effect for effect in found.effects if ELSEWHERE in str(effect)] == []
    assert found.errors == []
    left = [line for line in found.end if line.startswith(f"{child.kind} {ELSEWHERE}/")]
    made = [line for line in found.history if line.startswith(f"create {child.kind} {ELSEWHERE}/")]
    assert len(left) == len(made) > 1, "nobody deletes what a tenant has in its own namespace"


def test_every_kind_is_tried_with_children_of_another_namespace() -> None:
    """But for those that own no object."""
    tried = {case.root.kind for case in CASES.values()} | {kind.resource.kind for kind in _WITHOUT_CHILDREN}
    assert {kind.resource.kind for kind in (*ALL_KINDS, *COMPATIBLE_KINDS)} <= tried


@pytest.mark.parametrize("index", [None, "0"])
def test_a_pod_in_another_namespace_delays_no_instance(index: str | None) -> None:
    """Of the same Job and index, by its owner reference: instances of one namespace never wait for another one's."""
    begin, replace = _OF_JOB[index]

    async def run_elsewhere(api: Api) -> None:
        await begin(api)
        await nothing_elsewhere()(api)
        owned = await cloud_scenarios.of_job(api, index=index)
        owned["ownerReferences"] = [{**row, "apiVersion": "example.com/v1"} for row in owned["ownerReferences"]]  # type: ignore[attr-defined]
        tenant = Api(api.transport, ELSEWHERE, api.compact)
        await apply_pod(tenant, "start=20s,run=9h", name="train", metadata=owned)

    name = {None: "pod of a Job replaced", "0": "index of a Job replaced"}[index]
    scenario = msgspec.structs.replace(cloud_scenarios.SCENARIOS[name], steps=(run_elsewhere, replace))
    found = runner.play(scenario, None)
    expected = cloud_scenarios.reference(name)
    assert found.end["Pod next"]["status"]["phase"] == expected.end["Pod next"]["status"]["phase"]
    assert found.end[f"Pod {ELSEWHERE}/train"]["status"]["phase"] == "Running"
    assert found.errors == []


_OF_JOB = {
    None: (cloud_scenarios.run_for_a_job, cloud_scenarios.replace_for_the_job),
    "0": (cloud_scenarios.run_an_index, cloud_scenarios.replace_the_index),
}


def _here(rows: dict[str, Any]) -> dict[str, Any]:
    return {line: row for line, row in rows.items() if f" {ELSEWHERE}" not in line}
