"""Plan of a ModalJob: its TrainingJob, phases, ids, conditions and events."""

import msgspec
import pytest

from skysail.base.names import Annotation
from skysail.claims.types import CloudInstance
from skysail.cloud.modal.gangs.arguments import LIMITS
from skysail.core.actions import Apply
from skysail.kinds.training.plan.modal_job import plan
from skysail.kinds.training.translated_snapshot import TranslatedSnapshot
from tests.unit.kinds.training.builders import NOW
from tests.unit.kinds.training.builders import job as training
from tests.unit.kinds.training.builders import status as training_status
from tests.unit.kinds.training.children.test_modal_job import job


def snapshot(of=None, phase=None, *claims, **known) -> TranslatedSnapshot:
    child = (
        None
        if phase is None
        else training(status=training_status(phase=phase, completion_time=known.pop("ended", None)))
    )
    return TranslatedSnapshot(object=of or job(), now=NOW, training=child, claims=claims, **known)


def claim(**status) -> CloudInstance:
    spec = {"provider": "modal", "account": "simulated", "owner": {"kind": "Pod", "name": "p", "uid": "u"}}
    return msgspec.convert({"metadata": {"name": "u-0"}, "spec": spec, "status": status}, CloudInstance)


@pytest.mark.parametrize(
    ("phase", "expected", "event"),
    [
        (None, "Pending", None),
        ("Pending", "Pending", None),
        ("Running", "Running", "JobStarted"),
        ("Restarting", "Pending", None),
        ("Succeeded", "Succeeded", "JobSucceeded"),
        ("Failed", "Failed", "JobFailed"),
    ],
)
def test_phases_are_those_of_the_training(phase, expected, event):
    made = plan(snapshot(None, phase))
    assert made.status.phase == expected
    assert [note.reason for note in made.events] == ([event] if event else [])
    assert isinstance(made.actions[0], Apply)
    again = plan(snapshot(msgspec.structs.replace(job(), status=made.status), phase))
    assert again.events == ()
    assert again.status == made.status


def test_ids_and_times_come_from_the_claim_and_stay():
    shown = claim(instanceId="i-1", startTime="2026-03-01T11:00:00Z", readyTime="2026-03-01T11:00:05Z")
    made = plan(snapshot(None, "Running", shown)).status
    assert (made.modal_function_id, made.modal_app_id, made.simulated) == ("i-1", "u-0", True)
    assert (made.created_at, made.started_at) == ("2026-03-01T11:00:00Z", "2026-03-01T11:00:05Z")
    later = plan(
        snapshot(msgspec.structs.replace(job(), status=made), "Succeeded", ended="2026-03-01T12:00:00Z")
    ).status
    assert (later.modal_function_id, later.finished_at) == ("i-1", "2026-03-01T12:00:00Z")


def test_ids_of_the_cloud_itself_come_first():
    written = {
        Annotation.MODAL_APP_ID.value: "ap-1",
        Annotation.MODAL_FUNCTION_ID.value: "sb-1",
        Annotation.MODAL_LOG_URL.value: "https://modal.com/apps/ap-1",
    }
    made = plan(snapshot(None, "Running", claim(instanceId="i-1"), pod_annotations=written)).status
    assert (made.modal_app_id, made.modal_function_id, made.log_url) == ("ap-1", "sb-1", "https://modal.com/apps/ap-1")


def test_a_finished_job_does_not_run_again_without_its_training():
    done = plan(snapshot(None, "Succeeded")).status
    over = msgspec.structs.replace(job(), status=done)
    assert plan(snapshot(over)).actions == ()


def test_the_url_of_the_tunnel_is_that_of_the_pod():
    written = {Annotation.MODAL_TUNNEL_URL.value: "http://p-tunnel.n.svc.cluster.local"}
    shown = claim(instanceId="i-1")
    made = plan(snapshot(job(tunnel_enabled=True), "Running", shown, pod_annotations=written)).status
    assert made.tunnel_url == "http://p-tunnel.n.svc.cluster.local"
    assert plan(snapshot(job(), "Running", shown, pod_annotations=written)).status.tunnel_url == ""


def test_an_impossible_spec_is_refused_once():
    made = plan(snapshot(job(gpu="H100:16")))
    assert made.actions == ()
    assert [note.reason for note in made.events] == ["InvalidSpec"]
    assert plan(snapshot(msgspec.structs.replace(job(gpu="H100:16"), status=made.status))).events == ()


def test_gang_beyond_the_limits_of_the_cloud_is_refused_and_nothing_runs():
    made = plan(snapshot(job(gpu="T4", replicas=2, enable_i6pn=True), gang_limits=LIMITS))
    assert made.actions == ()
    assert [(note.reason, note.warning) for note in made.events] == [("InvalidSpec", True)]
    assert "request 8 T4 for each pod" in made.events[0].message
