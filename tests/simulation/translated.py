"""ModalJobs and TrainJobs in the simulation, whose TrainingJobs the training engine runs; and endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skysail.core.executor import CacheRegistry, Executor
from skysail.kinds.modal_endpoints.caches import Caches as EndpointCaches
from skysail.kinds.modal_endpoints.reconciler import AccountFacts, EndpointReconciler
from skysail.kinds.modal_endpoints.types import KINDS as ENDPOINT_KINDS
from skysail.kinds.training.api.modal_job import MODAL_JOB, ModalJob
from skysail.kinds.training.api.train_job import TRAIN_JOB, TrainJob
from skysail.kinds.training.translated_reconciler import ModalJobReconciler, TrainJobReconciler
from skysail.kube.cache.cache import index_by_uid
from tests.simulation.training import TrainingOperator

if TYPE_CHECKING:
    from tests.simulation.operator_process import Process

_SHIM = "# source of the handler server"
_SCRIPT = "# source of the trainer"


class TranslatingOperator(TrainingOperator):
    """An operator with the controllers of TrainingJobs, ModalJobs and TrainJobs."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        by_uid = {"uid": index_by_uid}
        modal_jobs = process.cache(MODAL_JOB.resource, ModalJob, by_uid)
        train_jobs = process.cache(TRAIN_JOB.resource, TrainJob, by_uid)
        of_train_jobs = TrainJobReconciler(train_jobs, self.caches, process.now)
        of_train_jobs.script = _SCRIPT
        process.control(ModalJobReconciler(modal_jobs, self.caches, process.now), modal_jobs, (self.caches.training,))
        process.control(of_train_jobs, train_jobs, (self.caches.training,))


class EndpointOperator:
    """An operator with the controllers of ModalEndpoints and ModalFunctions."""

    def __init__(self, process: Process) -> None:
        add_endpoints(process, has_apps=False)


def add_endpoints(process: Process, *, has_apps: bool) -> None:
    """Add the controllers of ModalEndpoints and ModalFunctions."""
    caches = EndpointCaches.create()
    every = (*caches.owners.values(), *caches.children)
    for cache in every:
        process.fill_only(cache)
    executor = Executor(process.client, CacheRegistry(*every), process)
    account = AccountFacts(is_simulated=True, has_apps=has_apps)
    for kind in ENDPOINT_KINDS:
        reconciler = EndpointReconciler(kind, process.client, caches, process.now, shim=_SHIM, account=account)
        controller = process.add_controller(reconciler, executor)
        owners = caches.owners[kind]
        owners.subscribe(controller.enqueue_object)
        caches.connect(controller, owners)
