"""Figures of TrainingJobs on the page of metrics."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skysail.base.metrics import Metrics
from skysail.core import conditions
from skysail.kinds.training.api.training_job import LatestCheckpoint, Metric, Progress
from skysail.kinds.training.caches import Caches
from skysail.kinds.training.metrics import TrainingMetrics, lost_training_seconds
from skysail.kube.api.fields import Condition
from tests.unit.kinds.training.builders import ago, attempt, job, pod, status
from tests.unit.kinds.training.test_reconciler import labelled


class Page:
    def __init__(self, *, leads: bool = True) -> None:
        self.caches = Caches.create()
        self.metrics = Metrics()
        self._version = 0
        TrainingMetrics(self.caches, lambda: leads).register(self.metrics)

    def see(self, shown: Any, **spec: Any) -> None:
        self._version += 1
        self.caches.training.put(job(metadata={"resource_version": str(self._version)}, status=shown, **spec))

    def figures(self, name: str) -> dict[str, float]:
        lines = self.metrics.render().decode().splitlines()
        rows = [line.rsplit(" ", 1) for line in lines if line.startswith((name + "{", name + " "))]
        return {labels.removeprefix(name): float(value) for labels, value in rows}


def test_a_life_is_counted_once():
    page = Page()
    failed = Condition(
        type="Succeeded", status="False", last_transition_time=ago(0), reason="BackoffLimitExceeded", message=""
    )
    page.see(None)
    for _ in range(2):
        page.see(status(attempt(0)))
    for _ in range(2):
        page.see(status(attempt(0, "Failed", run_time=ago(35))))
    over = status(attempt(0, "Failed", run_time=ago(35)), attempt(1, "Failed"), phase="Failed")
    page.see(msgspec.structs.replace(over, conditions=conditions.replace_condition((), failed)))
    assert page.figures("trainingjob_created_total") == {'{namespace="ml-jobs"}': 1}
    assert page.figures("trainingjob_completed_total") == {'{namespace="ml-jobs"}': 0}
    assert page.figures("trainingjob_failed_total") == {'{namespace="ml-jobs",reason="BackoffLimitExceeded"}': 1}
    assert page.figures("trainingjob_attempts_total") == {'{cause="Failed",namespace="ml-jobs"}': 2}
    assert page.figures("trainingjob_lost_seconds_total") == {'{namespace="ml-jobs"}': 30}


def test_what_others_did_before_us_is_not_ours_to_count():
    page = Page()
    page.see(status(attempt(0, "Succeeded"), phase="Succeeded"))
    assert page.figures("trainingjob_completed_total") == {}


def test_who_does_not_lead_shows_nothing():
    page = Page(leads=False)
    page.see(None)
    page.see(status(attempt(0), phase="Running", progress=Progress(percent=5)))
    for name in ("created_total", "state", "progress_percent", "allocated_workers"):
        assert page.figures(f"trainingjob_{name}") == {}


def test_what_a_job_told_last_is_shown():
    metrics = (Metric(name="loss", value="0.25"), Metric(name="eval_accuracy", value="0.5"), Metric(name="x", value=""))
    metrics += (Metric(name="gpu_utilization", value="87.5"),)
    page = Page()
    page.see(status(attempt(0), phase="Running", progress=Progress(percent=5, epoch=2, metrics=metrics)))
    mnist = 'name="mnist",namespace="ml-jobs"'
    assert page.figures("trainingjob_progress_percent") == {f"{{{mnist}}}": 5}
    assert page.figures("trainingjob_current_epoch") == {f"{{{mnist}}}": 2}
    assert page.figures("trainingjob_loss") == {f"{{{mnist}}}": 0.25}
    assert page.figures("trainingjob_accuracy") == {f"{{{mnist}}}": 0.5}
    assert page.figures("trainingjob_gpu_utilization_percent") == {f"{{{mnist}}}": 87.5}
    assert page.figures("trainingjob_state") == {f'{{{mnist},state="Running"}}': 1}


def test_passes_are_shown_by_the_labs_names_too():
    page = Page()
    page.metrics.reconcile_started("TrainingJob", 0.0)
    page.metrics.reconcile_finished("TrainingJob", "error", 0.5)
    page.metrics.reconcile_started("Other", 0.0)
    page.metrics.reconcile_finished("Other", "error", 0.5)
    assert page.figures("trainingjob_operator_errors_total") == {"": 1}
    assert page.figures("trainingjob_operator_reconcile_duration_seconds_sum") == {"": 0.5}


def test_a_loss_that_is_no_number_is_not_shown():
    page = Page()
    page.see(status(attempt(0), progress=Progress(metrics=(Metric(name="loss", value="nan"),))))
    assert page.figures("trainingjob_loss") == {}


def test_what_pods_with_a_node_hold_is_allocated():
    page = Page()
    page.see(status(attempt(0)), framework="tensorflow", gpuPerWorker=4, roles={"parameterServers": {"replicas": 1}})
    for each in (pod(0), pod(1, "Pending"), pod(2, "Succeeded"), pod(0, role="ps")):
        page.caches.pods.put(labelled(each))
    foreign = labelled(pod(3))
    page.caches.pods.put(
        msgspec.structs.replace(foreign, metadata=msgspec.structs.replace(foreign.metadata, namespace="elsewhere"))
    )
    assert page.figures("trainingjob_allocated_gpus") == {'{namespace="ml-jobs"}': 4}
    assert page.figures("trainingjob_allocated_workers") == {'{namespace="ml-jobs"}': 1}


@pytest.mark.parametrize(
    ("cause", "ran", "saved", "lost"),
    [
        ("Failed", 65, None, 60),
        ("Preempted", 65, 25, 20),
        ("Failed", 65, 1000, 60),
        ("Failed", 65, 5, 0),
        ("Failed", 65, 1, 0),
        ("Failed", None, None, 0),
        ("Succeeded", 65, None, 0),
    ],
)
def test_lost_is_what_was_trained_since_the_last_checkpoint(cause, ran, saved, lost):
    checkpoint = None if saved is None else LatestCheckpoint(path="/c", save_time=ago(saved))
    of = attempt(0, cause, run_time=None if ran is None else ago(ran))
    assert lost_training_seconds(job(status=status(of, checkpoint=checkpoint)), of) == lost


def test_metrics_stalled_training_is_shown_until_it_reports_again():
    page = Page()
    stalled = Condition(type="Stalled", status="True", last_transition_time=ago(0), reason="Stalled", message="")
    running = status(attempt(0), phase="Running")
    page.see(msgspec.structs.replace(running, conditions=conditions.replace_condition((), stalled)))
    assert list(page.figures("trainingjob_stalled").values()) == [1]
    page.see(running)
    assert page.figures("trainingjob_stalled") == {}
