"""The life of a model: every step by a table, and what must never happen by chance."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.base.names import Condition, EventReason, Label, Reason
from skysail.core.actions import Apply, Create, Delete, Event, PatchSpec, SetFinalizers
from skysail.core.pod_pending import PodEvent
from skysail.kinds.serving.api.types import Download, Failure
from skysail.kinds.serving.objects import ClaimSpec, ClaimStatus, TemplateSpec
from skysail.kinds.serving.plan import pending as pending_module
from skysail.kinds.serving.plan.planner import plan, refused
from skysail.kube.api.objects import Meta, Object
from skysail.kube.api.resources import (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    HORIZONTAL_POD_AUTOSCALER,
    JOB,
    PERSISTENT_VOLUME_CLAIM,
    SERVICE,
)
from tests.unit.kinds.serving import samples
from tests.unit.kinds.serving.builders import (
    LATE,
    NOW,
    ago,
    at,
    changed,
    claim,
    condition,
    deployment,
    entry,
    job,
    model,
    preparer,
    revision,
    said,
    server,
    shown,
)
from tests.unit.kinds.serving.samples import DIGEST

SERVERS = [(Apply, SERVICE), (Apply, SERVICE), (Apply, DEPLOYMENT)]
TRANSIENT = '{"step": "Download", "reason": "Unreachable", "message": "models.example.com does not answer."}'
MISSING = '{"step": "Download", "reason": "NotFound", "message": "There is nothing at models.example.com/iris.onnx."}'


def made(plan_):
    return [(type(action), action.resource) for action in plan_.actions]


def labels(plan_, resource=CONTROLLER_REVISION):
    """Of what is applied of this kind."""
    found = [action for action in plan_.actions if isinstance(action, (Apply, Create)) and action.resource == resource]
    return [action.manifest["metadata"]["labels"] for action in found]


def template(plan_):
    """The revision that the servers are made from."""
    found = next(action for action in plan_.actions if isinstance(action, Apply) and action.resource == DEPLOYMENT)
    return found.manifest["spec"]["template"]["metadata"]["labels"][Label.REVISION]


def events(plan_):
    return [note.reason for note in plan_.events]


def ready(of=None, number=1, **spec):
    """A model that is served, and the revision that is."""
    of = of or model(**spec)
    old = entry(of, number, "served")
    of = shown(of, revision=number, phase="Ready", digest=DIGEST)
    return of, old


def updated(**spec):
    """One that is served and asks for another version, and the revisions of both."""
    of, old = ready(**spec)
    of = changed(of, version="v2")
    return of, old, entry(of, 2)


# The way of the first revision.


def test_a_new_model_is_downloaded_first():
    result = plan(at(model()))
    assert made(result) == [(Create, JOB)]
    assert (result.status.phase, result.status.observed_generation) == ("Validating", 1)
    assert said(result.status, Condition.READY) == ("False", Reason.DOWNLOADING)
    assert said(result.status, Condition.PROGRESSING) == ("True", Reason.DOWNLOADING)
    assert result.status.candidate == revision(model())
    assert events(result) == [EventReason.DOWNLOADING]


def test_a_job_that_is_there_is_never_made_again():
    """Another version of Skysail may render it otherwise, and its template cannot be changed."""
    assert made(plan(at(model()))) == [(Create, JOB)]
    assert made(plan(at(model(), job(model())))) == []


def test_an_ml_model_gets_its_volume_first():
    result = plan(at(model(ml=True)))
    assert made(result) == [(Create, PERSISTENT_VOLUME_CLAIM), (Create, JOB)]
    assert result.status.phase == "CreatingStorage"
    assert plan(at(model(ml=True), claim=claim())).status.phase == "Downloading"


def test_a_model_in_the_image_of_its_server_needs_no_download():
    result = plan(at(model(modelURI="file:///models/iris")))
    assert (made(result), result.requeue_after) == ([(Apply, CONTROLLER_REVISION)], 0.0)
    assert result.status.phase == "Deploying"


@pytest.mark.parametrize(
    ("pod", "reason", "words"),
    [
        ({}, Reason.DOWNLOADING, "is being downloaded."),
        ({"validates": "Running"}, Reason.VALIDATING, "prepare_deadline_seconds"),
        (
            {"phase": "Pending", "unscheduled": "0/3 nodes are available: 3 Insufficient cpu."},
            Reason.INSUFFICIENT_RESOURCES,
            "The download fits on no node: 0/3 nodes are available: 3 Insufficient cpu.",
        ),
        (
            {"phase": "Pending", "waiting": "ErrImagePull", "said": "no such image"},
            Reason.IMAGE_PULL_FAILED,
            "The download cannot pull its image: no such image.",
        ),
        (
            {"phase": "Pending", "waiting": "CreateContainerConfigError", "said": 'secret "keys" not found'},
            Reason.CONFIG_MISSING,
            'secret "keys" not found.',
        ),
    ],
)
def test_a_download_says_at_once_where_it_is(pod, reason, words):
    of = model(validateScript="validate.py")
    result = plan(at(of, job(of), preparer(of, **pod)))
    told = condition(result.status, Condition.PROGRESSING)
    assert (told.reason, words in told.message) == (reason, True), told.message
    assert result.status.message == told.message


def test_a_volume_that_is_not_bound_is_a_step_of_its_own():
    of = model(ml=True)
    unbound = msgspec.structs.replace(claim(), status=ClaimStatus())
    why = "pod has unbound immediate PersistentVolumeClaims."
    for age, message in ((1, pending_module.PVC_CREATED.message), (30, f"The download waits for a volume: {why}")):
        pending = preparer(of, "Pending", unscheduled=why, metadata={"creationTimestamp": ago(age)})
        result = plan(at(of, job(of), pending, claim=unbound))
        assert (result.status.phase, result.status.message) == ("CreatingStorage", message)
        assert result.requeue_after == (10 if age == 1 else None), "what lasts is told"
    assert plan(at(of, job(of), claim=unbound)).status.message == pending_module.PVC_CREATED.message


def test_a_quota_that_keeps_the_pod_away_is_named():
    of = model()
    result = plan(at(of, job(of), create_failure="pods is forbidden: exceeded quota: few"))
    assert condition(result.status, Condition.PROGRESSING).reason == Reason.QUOTA_EXCEEDED


def test_the_progress_of_a_download_is_shown_and_asked_for_again():
    of = model()
    known = Download(bytes=12_300_000, total=90_100_000, percent=13, remaining_seconds=40, last_updated_time=ago(0))
    result = plan(at(of, job(of), preparer(of), download=known))
    assert (result.status.download, result.requeue_after) == (known, 10.0)
    assert "12.3 MB of 90.1 MB" in result.status.message


def test_progress_that_was_not_read_stays_as_it_was():
    of = model()
    known = Download(bytes=1, last_updated_time=ago(4))
    of = shown(of, download=known, candidate=revision(of))
    assert plan(at(of, job(of), preparer(of))).status.download == known


def test_what_was_downloaded_goes_into_the_history_with_its_digest():
    of = model(validateScript="validate.py")
    result = plan(at(of, job(of, "Complete"), preparer(of, "Succeeded", validates="Succeeded")))
    assert (made(result), result.requeue_after) == ([(Apply, CONTROLLER_REVISION)], 0.0), "served by the next pass"
    manifest = result.actions[0].manifest
    assert (manifest["revision"], manifest["data"]["digest"]) == (1, DIGEST)
    assert Label.OUTCOME not in manifest["metadata"]["labels"]
    assert said(result.status, Condition.MODEL_DOWNLOADED) == ("True", Reason.DOWNLOADED)
    assert said(result.status, Condition.MODEL_VALIDATED) == ("True", Reason.VALIDATED)
    assert EventReason.VALIDATION_PASSED in events(result)
    assert result.status.phase == "Deploying"


def test_how_long_a_download_took_is_kept_because_each_server_does_it_again():
    of = model()
    result = plan(at(of, job(of, "Complete"), preparer(of, "Succeeded", took=4000)))
    assert result.actions[0].manifest["data"]["seconds"] == 4000
    kept = msgspec.structs.replace(entry(of), seconds=4000)
    made_ = next(each.manifest for each in plan(at(of, kept)).actions if each.resource == DEPLOYMENT)
    assert made_["spec"]["progressDeadlineSeconds"] == 1800 + 3 * 4000


@pytest.mark.parametrize(("modes", "is_shared"), [(["ReadWriteOnce"], False), (["ReadOnlyMany"], True)])
def test_whether_a_source_belongs_to_one_node_is_kept_with_the_revision(modes, is_shared):
    of = model(modelURI="pvc://weights/iris.onnx")
    source = msgspec.structs.replace(claim(), spec=ClaimSpec(access_modes=tuple(modes)))
    begun = plan(at(of, source=source)).actions[0].manifest["spec"]["template"]["spec"]
    done = plan(at(of, job(of, "Complete"), preparer(of, "Succeeded"), source=source))
    stored = next(each.manifest for each in done.actions if each.resource == CONTROLLER_REVISION)
    assert (stored["data"].get("isShared", False), "affinity" not in begun) == (is_shared, is_shared)


def test_servers_that_download_say_so():
    of = model()
    known = entry(of)
    result = plan(at(of, known, deployment(known, available=0), server(of, ready=False, init=True)))
    assert condition(result.status, Condition.PROGRESSING).message == pending_module.DOWNLOADS_AGAIN.message


def test_a_download_whose_word_is_lost_is_done_again():
    of = model()
    result = plan(at(of, job(of, "Complete")))
    assert made(result) == [(Delete, JOB)]
    assert result.actions[0].foreground


def test_a_pod_of_which_nobody_has_heard_that_it_ended_is_waited_for():
    of = model()
    result = plan(at(of, job(of, "Complete"), preparer(of)))
    assert (made(result), result.requeue_after) == ([], 10.0)


def test_a_download_that_does_not_say_what_it_came_to_is_not_done_for_ever():
    of = model()
    result = plan(at(of, job(of, "Complete"), preparer(of, "Succeeded", done="all good")))
    assert (made(result), result.status.phase) == ([], "Failed")
    assert "reported no digest" in result.status.message


def test_a_job_that_has_not_confirmed_its_end_is_waited_for():
    of = model()
    for end in ("SuccessCriteriaMet", "FailureTarget"):
        result = plan(at(of, job(of, end), preparer(of, "Failed")))
        assert (made(result), result.status.failure) == ([], None)


def test_servers_follow_a_revision_that_was_found_good():
    of = model()
    new = entry(of)
    result = plan(at(of, job(of, "Complete"), new))
    assert made(result) == SERVERS
    assert template(result) == new.hash
    assert (result.status.phase, result.status.revision, result.status.url) == ("Deploying", 0, "")


def test_a_model_is_ready_when_all_its_servers_answer():
    of = model()
    new = entry(of)
    part = plan(at(of, new, deployment(new, replicas=2, available=1), server(of), server(of, 1, ready=False)))
    assert (part.status.phase, part.status.revision) == ("Deploying", 0)
    assert "1 of 2 servers of revision 1" in part.status.message
    whole = plan(at(of, new, deployment(new), server(of)))
    assert (whole.status.phase, whole.status.revision, whole.status.version) == ("Ready", 1, "v1")
    assert (whole.status.digest, whole.status.candidate, whole.status.ready_replicas) == (DIGEST, "", 1)
    assert whole.status.url == "http://iris-service.shop.svc:8000"
    assert said(whole.status, Condition.READY) == ("True", Reason.SERVED)
    assert said(whole.status, Condition.PROGRESSING) == ("False", Reason.SERVED)
    assert labels(whole)[0][Label.OUTCOME] == "served"
    assert EventReason.DEPLOYED in events(whole)


def test_a_served_model_is_left_alone():
    of, old = ready()
    settled = plan(at(of, old, deployment(old), server(of)))
    again = plan(at(shown(of, **_fields(settled.status)), old, deployment(old), server(of)))
    assert (again.status, again.events, again.requeue_after) == (settled.status, (), None)
    assert made(again) == SERVERS  # of which none is written, because each was applied so


def _fields(status):
    return {name: getattr(status, name) for name in status.__struct_fields__}


def test_only_an_exposed_ml_model_has_an_address():
    for is_exposed, address in ((True, "flowers-service.shop.svc.cluster.local:8501"), (False, "")):
        of = model(ml=True, expose=is_exposed)
        new = entry(of)
        result = plan(at(of, new, deployment(new), server(of)))
        assert (result.status.phase, result.status.service_endpoint) == ("Ready", address)
        assert ((Apply, SERVICE) in made(result)) is is_exposed


def test_a_service_that_nobody_wants_any_more_goes():
    of, old = ready(model(ml=True, expose=False))
    service = Object(Meta(name="flowers-service", uid="s"))
    assert (Delete, SERVICE) in made(plan(at(of, old, deployment(old), services=(service,))))


def test_nothing_answers_where_no_server_is_wanted():
    of, old = ready(model(ml=True, replicas=0))
    result = plan(at(of, old, deployment(old, replicas=0)))
    assert (result.status.phase, said(result.status, Condition.READY)) == ("Ready", ("False", Reason.SCALED_TO_ZERO))


def test_who_has_never_answered_is_not_one_to_go_back_to():
    of = model(ml=True, replicas=0)
    new = entry(of, 1)
    result = plan(at(shown(of, revision=1), new, deployment(new, replicas=0)))
    assert [action for action in result.actions if action.resource == CONTROLLER_REVISION] == []


# Updates.


def test_a_new_version_is_downloaded_while_the_old_one_is_served():
    of, old, _ = updated()
    result = plan(at(of, old, job(of, "Complete", of_revision=old.hash), deployment(old), server(of)))
    assert made(result) == [(Delete, JOB), *SERVERS]
    assert template(result) == old.hash
    result = plan(at(of, old, deployment(old), server(of)))
    assert made(result) == [(Create, JOB), *SERVERS]
    assert template(result) == old.hash
    assert (result.status.phase, result.status.revision, result.status.version) == ("Ready", 1, "v1")
    assert said(result.status, Condition.READY) == ("True", Reason.SERVED)
    assert said(result.status, Condition.PROGRESSING) == ("True", Reason.DOWNLOADING)


def test_a_new_version_takes_over_when_all_its_servers_answer():
    of, old, new = updated()
    result = plan(at(of, old, new, deployment(old), server(of, of_revision=old.hash)))
    assert (template(result), result.status.revision, result.status.candidate) == (new.hash, 1, new.hash)
    rolled = plan(at(of, old, new, deployment(new), server(of)))
    assert (rolled.status.revision, rolled.status.version, rolled.status.candidate) == (2, "v2", "")
    assert events(rolled) == [EventReason.DEPLOYED]


def test_a_failed_download_never_touches_what_is_served():
    of, old, _ = updated()
    result = plan(at(of, old, job(of, "Failed"), preparer(of, "Failed", exit=78, said=MISSING), deployment(old)))
    assert template(result) == old.hash
    assert (JOB not in [action.resource for action in result.actions], result.requeue_after) == (True, None)
    assert (result.status.phase, result.status.revision) == ("Ready", 1)
    assert said(result.status, Condition.UPDATE_FAILED) == ("True", Reason.NOT_FOUND)
    found = result.status.failure
    assert (found.step, found.reason, found.exit_code, found.revision) == ("Download", "NotFound", 78, revision(of))
    assert "Revision 1 (version v1) is still served" in result.status.message
    assert EventReason.UPDATE_FAILED in events(result)


def test_a_server_that_begins_anew_after_a_failed_update_has_not_failed_with_it():
    of, old, _ = updated()
    failed = (job(of, "Failed"), preparer(of, "Failed", exit=78, said=MISSING))
    result = plan(at(of, old, *failed, deployment(old, available=0), server(of, ready=False)))
    assert (result.status.phase, said(result.status, Condition.READY)[0]) == ("Deploying", "False")
    assert said(result.status, Condition.READY)[1] != Reason.NOT_FOUND
    assert said(result.status, Condition.UPDATE_FAILED) == ("True", Reason.NOT_FOUND)


def test_a_first_revision_that_cannot_be_downloaded_has_failed():
    of = model()
    result = plan(at(of, job(of, "Failed"), preparer(of, "Failed", exit=78, said=MISSING)))
    assert made(result) == []
    assert result.status.phase == "Failed"
    assert "There is nothing at models.example.com/iris.onnx." in result.status.message
    assert said(result.status, Condition.MODEL_DOWNLOADED) == ("False", Reason.NOT_FOUND)
    assert said(result.status, Condition.UPDATE_FAILED) is None


def test_a_verdict_stays_when_the_pod_goes_that_it_was_read_from():
    of = model()
    bad = preparer(of, "Failed", exit=65, said='{"step": "Download", "reason": "EmptyModel", "message": "Empty."}')
    first = plan(at(of, job(of, "Failed"), bad))
    assert (first.status.phase, first.status.failure.exit_code) == ("Failed", 65)
    second = plan(at(shown(of, failure=first.status.failure, phase="Failed"), job(of, "Failed")))
    assert (second.actions, second.status.phase, second.status.failure) == ((), "Failed", first.status.failure)


@pytest.mark.parametrize(
    ("script", "told"),
    [("checks/v.py", "checks/v.py"), ("https://host.example.com/v.py?sig=secret", "https://host.example.com/v.py")],
)
def test_an_event_tells_no_signature_of_an_address(script, told):
    events = plan(at(model(validateScript=script))).events
    message = next(event.message for event in events if event.reason == EventReason.VALIDATION_STARTED)
    assert message.endswith(f" with {told}.")


def test_a_failed_validation_says_how_with_its_log():
    of = model(validateScript="validate.py")
    failed = preparer(of, "Failed", validates="Failed", exit=3)
    result = plan(at(of, job(of, "Failed"), failed, log="loss is nan\nassertion failed\n"))
    found = result.status.failure
    assert (found.step, found.reason, found.exit_code) == ("Validate", Reason.VALIDATION_FAILED, 3)
    assert found.log == "loss is nan\nassertion failed"
    assert said(result.status, Condition.MODEL_DOWNLOADED) == ("True", Reason.DOWNLOADED)
    assert said(result.status, Condition.MODEL_VALIDATED) == ("False", Reason.VALIDATION_FAILED)
    assert EventReason.VALIDATION_FAILED in events(result)


def test_what_may_pass_is_written_down_and_tried_again_when_it_is_time():
    of = model()
    children = (job(of, "Failed"), preparer(of, "Failed", exit=75, said=TRANSIENT))
    first = plan(at(of, *children))
    assert (made(first), first.status.failure.attempts, first.requeue_after) == ([], 1, 20.0)
    assert said(first.status, Condition.PROGRESSING) == ("True", Reason.RETRYING)
    assert first.status.phase == "Validating"
    of = shown(of, failure=first.status.failure)
    later = {"now": NOW.replace(second=21)}
    second = plan(at(of, *children, **later))
    assert (made(second), second.status.failure.attempts) == ([(Delete, JOB)], 1)
    unknown = plan(at(model(), *children, **later))
    assert (made(unknown), unknown.requeue_after) == ([], 0.0), "the try is counted before its Job goes"


def test_a_download_that_its_node_lost_goes_its_way():
    lost = {"reason": "Lost", "told": "The agent died.", "disrupted": ("TerminationByKubelet", ""), "exit": 137}
    of = model()
    children = (job(of, "Failed"), preparer(of, "Failed", **lost))
    first = plan(at(of, *children, now=NOW - timedelta(seconds=8)))
    assert (made(first), first.status.failure.attempts, first.requeue_after) == ([], 0, 3.0)
    assert said(first.status, Condition.PROGRESSING) == ("True", Reason.DOWNLOADING)
    assert [event for event in first.events if event.warning] == []
    second = plan(at(shown(of, failure=first.status.failure), *children))
    assert made(second) == [(Delete, JOB)]


@pytest.mark.parametrize(("before", "seconds"), [(0, 30), (1, 60), (2, 120), (5, 960), (6, 1800), (40, 1800)])
def test_pauses_double_up_to_half_an_hour(before, seconds):
    of = model()
    known = Failure(step="Download", reason="Unreachable", revision=revision(of), failure_time=ago(99), attempts=before)
    of = shown(of, failure=known if before else None)
    result = plan(at(of, job(of, "Failed"), preparer(of, "Failed", exit=75, said=TRANSIENT)))
    assert (result.status.failure.attempts, result.requeue_after) == (before + 1, seconds - 10)


def tried(of, attempts):
    """The same model after so many tries that failed."""
    known = Failure(
        step="Download",
        reason="Unreachable",
        message="It is away.",
        revision=revision(of),
        exit_code=75,
        failure_time=ago(99),
        attempts=attempts,
    )
    return shown(of, failure=known, candidate=revision(of))


@pytest.mark.parametrize(("before", "phase"), [(1, "Validating"), (2, "Failed"), (9, "Failed")])
def test_a_failure_that_lasts_is_shown_as_one_and_tried_on(before, phase):
    of = tried(model(), before)
    result = plan(at(of, job(of, "Failed"), preparer(of, "Failed", exit=75, said=TRANSIENT)))
    assert (result.status.phase, result.status.failure.attempts) == (phase, before + 1)
    assert said(result.status, Condition.PROGRESSING) == ("True", Reason.RETRYING)
    assert f"Attempt {before + 1} failed" in result.status.message
    assert result.requeue_after is not None


def test_an_update_that_cannot_be_had_for_a_while_has_failed_until_it_can():
    of, old, _ = updated()
    served = (old, deployment(old), server(of, of_revision=old.hash))
    failed_ = (job(of, "Failed"), preparer(of, "Failed", exit=75, said=TRANSIENT))
    early = plan(at(tried(of, 1), *served, *failed_))
    assert said(early.status, Condition.UPDATE_FAILED) == ("False", Reason.UPDATED)
    late = plan(at(tried(of, 2), *served, *failed_))
    assert said(late.status, Condition.UPDATE_FAILED) == ("True", Reason.UNREACHABLE)
    assert EventReason.UPDATE_FAILED in events(late)
    assert (late.status.phase, late.status.revision) == ("Ready", 1)
    again = msgspec.structs.replace(of, status=late.status)
    running = plan(at(again, *served, job(of, seconds=5), preparer(of)))
    assert said(running.status, Condition.UPDATE_FAILED) == ("True", Reason.UNREACHABLE), "also while it is tried"
    told = condition(running.status, Condition.PROGRESSING).message
    assert told == "The model is being downloaded. Last of 3 failures: models.example.com does not answer."
    assert events(running) == []
    ends = msgspec.structs.replace(of, status=running.status)
    for pod in (preparer(of, "Failed", exit=75), preparer(of, "Pending", waiting="ImagePullBackOff")):
        first = plan(at(ends, *served, job(of, seconds=5), pod)).status
        assert plan(at(msgspec.structs.replace(of, status=first), *served, job(of, seconds=5), pod)).status == first
    well = plan(at(again, *served, job(of, "Complete"), preparer(of, "Succeeded")))
    assert said(well.status, Condition.UPDATE_FAILED) == ("False", Reason.UPDATED)
    assert well.status.failure is None


def test_the_number_of_tries_is_known_while_the_next_one_runs():
    of = model()
    known = Failure(step="Download", reason="Unreachable", revision=revision(of), failure_time=ago(99), attempts=3)
    of = shown(of, failure=known)
    assert plan(at(of, job(of, seconds=5), preparer(of))).status.failure == known
    assert plan(at(changed(of, version="v2"))).status.failure is None


def test_planner_server_crash_loop_records_failure_before_rollback():
    of, old, new = updated()
    bad = server(of, 1, ready=False, waiting="CrashLoopBackOff", exit=37, restarts=3)
    children = (old, new, deployment(new, replicas=2, available=1), server(of, of_revision=old.hash), bad)
    first = plan(at(of, *children, log="no such layer"))
    assert (first.actions, first.requeue_after) == ((), 0.0)
    found = first.status.failure
    assert (found.step, found.reason, found.exit_code, found.log) == ("Deploy", "CrashLoop", 37, "no such layer")
    of = shown(of, failure=found)
    second = plan(at(of, *children))
    assert labels(second)[0][Label.OUTCOME] == "failed"
    assert template(second) == old.hash
    assert said(second.status, Condition.UPDATE_FAILED) == ("True", Reason.CRASH_LOOP)
    assert said(second.status, Condition.ROLLED_BACK) == ("True", Reason.UPDATE_FAILED)
    assert (second.status.phase, second.status.revision, second.status.failure) == ("Ready", 1, found)
    assert {EventReason.UPDATE_FAILED, EventReason.ROLLED_BACK} <= set(events(second))


def test_fewer_crashes_may_pass():
    of, old, new = updated()
    bad = server(of, 1, ready=False, waiting="CrashLoopBackOff", exit=37, restarts=2)
    result = plan(at(of, old, new, deployment(new, replicas=2, available=1), bad))
    assert (result.status.failure, template(result)) == (None, new.hash)
    told = condition(result.status, Condition.PROGRESSING)
    assert (told.reason, "exited with code 37" in told.message) == (Reason.CRASH_LOOP, True)


@pytest.mark.parametrize(
    ("pod", "step", "reason", "words"),
    [
        (
            {"waiting": "ImagePullBackOff", "said": "not there"},
            "Deploy",
            Reason.IMAGE_PULL_FAILED,
            "cannot pull its image",
        ),
        ({"unscheduled": "0/1 nodes: cpu"}, "Deploy", Reason.INSUFFICIENT_RESOURCES, "fits on no node"),
        ({}, "Ready", Reason.NOT_READY, "did not become ready within 1890 s"),
        (
            {"init": True},
            "Deploy",
            Reason.DEADLINE_EXCEEDED,
            "after 1890 s, but the first download took 30 s",
        ),
    ],
)
def test_servers_that_are_too_late_are_undone_and_say_why(pod, step, reason, words):
    of, old, new = updated()
    new = msgspec.structs.replace(new, seconds=30)
    late = server(of, 1, ready=False, **pod)
    result = plan(at(of, old, new, deployment(new, replicas=2, available=1, late=LATE), late))
    found = result.status.failure
    assert (found.step, found.reason, words in found.message) == (step, reason, True), found.message


def test_a_port_that_clients_use_stays_until_nobody_is_behind_it():
    of, old, new = updated()
    old = msgspec.structs.replace(old, want=msgspec.structs.replace(old.want, runtime="triton"))

    def ports(servers):
        service = next(action for action in plan(at(of, old, new, servers)).actions if action.resource == SERVICE)
        return [port["name"] for port in service.manifest["spec"]["ports"]]

    assert ports(deployment(old)) == ports(deployment(new, replicas=2, available=1)) == ["http", "grpc"]
    assert ports(deployment(new)) == ["http"]


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        ({"waiting": "ImagePullBackOff", "said": "not there"}, Reason.IMAGE_PULL_FAILED),
        ({"unscheduled": "0/1 nodes: cpu"}, Reason.INSUFFICIENT_RESOURCES),
        ({"waiting": "CreateContainerConfigError", "said": "no Secret"}, Reason.CONFIG_MISSING),
        ({"exit": 137, "restarts": 4}, Reason.CRASH_LOOP),
    ],
)
def test_what_keeps_a_first_revision_is_warned_of_once(pod, reason):
    of = model()
    new = entry(of)
    late = (new, deployment(new, available=0), server(of, ready=False, **pod))
    result = plan(at(of, *late))
    assert [(event.reason, event.warning) for event in result.events if event.warning] == [(reason, True)]
    again = msgspec.structs.replace(of, status=result.status)
    assert plan(at(again, *late)).events == ()


def test_a_server_that_says_nothing_for_a_minute_is_told_with_where_it_is_asked():
    of = model()
    new = entry(of)
    quiet = server(of, ready=False)
    early = plan(at(of, new, deployment(new, available=0), quiet))
    assert (early.status.message, early.requeue_after) == ("The servers of revision 1 are starting.", 21.0)
    later = plan(at(of, new, deployment(new, available=0), quiet, now=NOW + timedelta(seconds=30)))
    assert "is not ready at /v2/models/iris/ready on port 8000" in later.status.message
    assert later.requeue_after is None


def test_servers_that_nobody_made_are_not_said_to_run():
    of, old, new = updated()
    made = deployment(new, replicas=2, available=1, late=LATE)
    found = plan(at(of, old, new, made, server(of))).status.failure
    assert (found.step, found.reason) == ("Deploy", Reason.NOT_READY)
    assert "kubectl describe deployment" in found.message


def test_servers_that_were_there_before_are_not_late_because_others_were():
    """The verdict on these stays in the Deployment until one of those moves."""
    of, old, new = updated()
    others = deployment(new, replicas=2, available=1, late='ReplicaSet "iris-0" has timed out progressing.')
    for pods in ((), (server(of, ready=False),)):
        assert plan(at(of, old, new, others, *pods)).status.failure is None
    gone = server(of, ready=False, metadata={"deletionTimestamp": ago(1)})
    late = deployment(new, replicas=2, available=1, late=LATE)
    assert plan(at(of, old, new, late, gone)).status.failure is not None, "where each is replaced at once"
    refused = deployment(new, replicas=2, available=1, late=LATE, refusal="exceeded quota")
    assert plan(at(of, old, new, refused)).status.failure.reason != Reason.NOT_READY


def test_what_failed_stays_undone_until_another_revision_is_asked_for():
    of, old, new = updated()
    failed = msgspec.structs.replace(new, outcome="failed")
    found = Failure(step="Deploy", reason="CrashLoop", message="It ended.", revision=new.hash, failure_time=ago(9))
    of = shown(of, failure=found)
    result = plan(at(of, old, failed, deployment(old), server(of, of_revision=old.hash)))
    assert (template(result), labels(result), result.status.candidate) == (old.hash, [], "")
    assert said(result.status, Condition.PROGRESSING) == ("False", Reason.UPDATE_FAILED)
    back = plan(at(changed(of, version="v1"), old, failed, deployment(old)))
    assert Label.OUTCOME not in labels(back)[0], "it gets another chance when it is asked for again"
    assert (back.status.failure, said(back.status, Condition.UPDATE_FAILED)) == (None, ("False", Reason.UPDATED))


def test_a_first_revision_whose_servers_fail_heals_by_itself():
    of = model()
    new = entry(of)
    bad = server(of, ready=False, waiting="CrashLoopBackOff", exit=1, restarts=4)
    failing = plan(at(of, new, deployment(new, available=0), bad))
    assert (failing.status.phase, template(failing)) == ("Failed", new.hash)
    of = shown(of, failure=failing.status.failure, phase="Failed")
    still = plan(at(of, new, deployment(new, available=0), bad))
    assert still.status.failure == failing.status.failure
    healed = plan(at(of, new, deployment(new), server(of)))
    assert (healed.status.phase, healed.status.failure) == ("Ready", None)


def test_a_served_revision_is_not_undone_when_it_fails_later():
    of, old, new = updated()
    of = shown(of, revision=2)
    new = msgspec.structs.replace(new, outcome="served")
    bad = server(of, ready=False, waiting="CrashLoopBackOff", exit=1, restarts=4)
    result = plan(at(of, old, new, deployment(new, available=0), bad))
    assert (template(result), result.status.phase, result.status.revision) == (new.hash, "Failed", 2)
    assert said(result.status, Condition.READY) == ("False", Reason.CRASH_LOOP)
    assert said(result.status, Condition.UPDATE_FAILED) == ("False", Reason.UPDATED)


def test_a_verdict_about_a_download_is_none_about_servers():
    of, old, new = updated()
    known = Failure(step="Download", reason="Unreachable", revision=new.hash, failure_time=ago(99), attempts=2)
    result = plan(at(shown(of, failure=known), old, new, deployment(old)))
    assert (template(result), result.status.failure) == (new.hash, None)


# What was lost, and what has changed around it.


def test_a_revision_whose_claim_is_gone_is_made_ready_again_in_a_new_one():
    of = model(ml=True)
    old = entry(of, 3, "served")
    of = shown(of, revision=3)
    first = plan(at(of, old, deployment(old), job(of, "Complete"), preparer(of, "Succeeded"), claim=None))
    assert made(first) == [(Delete, JOB)], "it has filled a claim that is gone"
    assert (first.status.phase, first.status.revision) == ("Downloading", 0)
    begun = plan(at(of, old, deployment(old), claim=None))
    assert made(begun) == [(Create, PERSISTENT_VOLUME_CLAIM), (Create, JOB)]
    before = job(of, "Complete", seconds=600)
    assert made(plan(at(of, old, before, preparer(of, "Succeeded"), claim=claim("other")))) == [(Delete, JOB)]
    done = plan(at(of, old, deployment(old), job(of, "Complete"), preparer(of, "Succeeded"), claim=claim("other")))
    assert made(done)[:2] == [(Delete, CONTROLLER_REVISION), (Apply, CONTROLLER_REVISION)]
    assert done.actions[0].object == old.object
    written = done.actions[1].manifest
    assert (written["revision"], written["data"]["claim"]) == (3, "other")
    assert template(plan(at(of, msgspec.structs.replace(old, claim="other"), claim=claim("other")))) == old.hash


def test_another_content_in_the_new_claim_is_another_revision():
    of = model(ml=True)
    old = entry(of, 3, "served", digest="sha256:" + "cd" * 32)
    done = plan(at(of, old, job(of, "Complete"), preparer(of, "Succeeded"), claim=claim("other")))
    assert done.actions[1].manifest["revision"] == 4


def test_what_is_pinned_and_lost_must_be_what_it_was():
    of = model(ml=True)
    for spec, is_told in (({"rollback_to": 3}, True), ({}, False)):
        begun = plan(at(changed(of, **spec), entry(of, 3, "served"), claim=None))
        words = next(action for action in begun.actions if action.resource == JOB).manifest["spec"]["template"]["spec"]
        assert (DIGEST.removeprefix("sha256:") in words["containers"][0]["args"]) is is_told


def test_nobody_goes_back_to_a_revision_whose_claim_is_gone():
    of = model(ml=True)
    old = entry(of, 1, "served")
    of = changed(shown(of, revision=1), model_url="https://models.example.com/new.tar.gz")
    new = msgspec.structs.replace(entry(of, 2), claim="other")
    bad = server(of, ready=False, waiting="CrashLoopBackOff", exit=37, restarts=3)
    result = plan(at(of, old, new, deployment(new, available=0), bad, claim=claim("other")))
    assert (result.status.phase, template(result)) == ("Failed", new.hash)


def test_a_claim_that_is_being_deleted_is_waited_for():
    of = model(ml=True)
    result = plan(at(of, claim=claim(deletionTimestamp=ago(1))))
    assert (made(result), result.status.phase) == ([], "CreatingStorage")


@pytest.mark.parametrize("metadata", [{}, {"deletionTimestamp": ago(1)}, {"ownerReferences": []}])
def test_a_pod_that_has_outlived_its_job_ends_before_another_download_begins(metadata):
    of = model()
    assert made(plan(at(of, preparer(of, metadata=metadata)))) == []
    assert made(plan(at(of, preparer(of, "Succeeded", metadata=metadata)))) == [(Create, JOB)]


def test_planner_unreadable_revision_is_replaced_and_number_not_reused():
    of = model()
    stray = msgspec.structs.replace(entry(of, 7).object, data={"want": 3})
    found = plan(at(of, job(of, "Complete"), preparer(of, "Succeeded"), unlisted_revisions=(stray,)))
    assert made(found)[:2] == [(Delete, CONTROLLER_REVISION), (Apply, CONTROLLER_REVISION)]
    assert (found.actions[0].object, found.actions[1].manifest["revision"]) == (stray, 8)


def test_settings_are_no_part_of_a_revision_but_may_be_why_one_failed():
    of = model()
    others = {"allowed_model_hosts": ("10.0.0.0/8",)}, {"fetch_image": "fetch:2"}, {"max_model_bytes": 5}
    bad = preparer(of, "Failed", exit=77, said=TRANSIENT.replace("Unreachable", "AddressForbidden"))
    assert made(plan(at(of, job(of, "Failed"), bad))) == []
    for settings in others:
        config = samples.told(**settings)
        assert made(plan(at(of, job(of, "Failed"), bad, config=config))) == [(Delete, JOB)]
        assert made(plan(at(of, job(of), preparer(of), config=config))) == [], "what goes on is not begun anew"
        known = entry(of, 1, "served")
        assert JOB not in [resource for _, resource in made(plan(at(of, known, deployment(known), config=config)))]


def test_a_claim_grows_and_a_download_that_had_no_room_is_tried_again():
    of = model(ml=True)
    failed = (job(of, "Failed"), preparer(of, "Failed", exit=65, said=TRANSIENT.replace("Unreachable", "TooLarge")))
    of = changed(of, storage_size="9Gi")
    asked = plan(at(of, *failed))
    assert made(asked) == [(PatchSpec, PERSISTENT_VOLUME_CLAIM)]
    assert asked.actions[0].spec == {"resources": {"requests": {"storage": "9Gi"}}}
    unbound = msgspec.structs.replace(claim(), status=ClaimStatus())
    assert made(plan(at(of, *failed, claim=unbound))) == [], "the server would refuse it as long as it has no volume"
    growing = msgspec.structs.replace(claim(size="9Gi"), status=claim(size="5Gi").status)
    assert made(plan(at(of, *failed, claim=growing))) == []
    assert made(plan(at(of, *failed, claim=claim(size="9Gi")))) == [(Delete, JOB)]


def test_a_claim_never_shrinks():
    of, old = ready(model(ml=True, storageSize="1Gi"))
    assert (PatchSpec, PERSISTENT_VOLUME_CLAIM) not in made(plan(at(of, old, deployment(old))))


def test_a_claim_that_cannot_grow_says_so_and_keeps_nothing_else_from_being_told():
    of, old = ready(model(ml=True, storageSize="9Gi"))
    snapshot = at(of, old, deployment(old), server(of))
    forbidden = Event(Reason.RECONCILE_FAILED, 'persistentvolumeclaims "flowers-pvc" is forbidden: no resize.')
    result = refused(snapshot, forbidden).status
    assert said(result, Condition.ACCEPTED) == ("False", Reason.VOLUME_EXPANSION_FAILED)
    assert "Set spec.storageSize back to 5Gi" in result.message
    assert (result.phase, said(result, Condition.READY)) == ("Ready", ("True", Reason.SERVED))
    other = refused(snapshot, Event(Reason.RECONCILE_FAILED, "Deployment flowers-server is forbidden.")).status
    assert said(other, Condition.ACCEPTED) == ("False", Reason.RECONCILE_FAILED)


# An operator that was there before.


def test_servers_that_the_api_server_refuses_are_not_made_and_the_others_go_on():
    of = model()
    old, bad = entry(of, 1, "served"), changed(of, version="v2")
    new, why = entry(bad, 2), "The API server rejects the Deployment of this model: cpu must not be negative."
    seen = plan(at(bad, old, new, deployment(old), server(of), preflight_error=why))
    assert (seen.actions, seen.requeue_after) == ((), 0.0)
    assert (seen.status.failure.step, seen.status.failure.reason) == ("Deploy", Reason.INVALID_SPEC)
    condemned = msgspec.structs.replace(bad, status=seen.status)
    back = plan(at(condemned, old, new, deployment(old), server(of)))
    assert template(back) == revision(of)
    assert said(back.status, Condition.UPDATE_FAILED) == ("True", Reason.INVALID_SPEC)
    first = plan(at(bad, new, preflight_error=why))
    assert (first.actions, first.status.phase, first.requeue_after) == ((), "Failed", None)


def test_what_served_a_model_before_goes_on_until_servers_of_ours_have_its_services():
    of = model()
    new, before = entry(of), Object(Meta(name="inference-iris", namespace="shop", uid="before"))
    rolling = plan(at(of, new, deployment(new, available=0), server(of, ready=False), predecessor=before))
    assert made(rolling) == [(Apply, DEPLOYMENT)]
    found = plan(at(of, job(of, "Complete"), preparer(of, "Succeeded"), predecessor=before))
    assert made(found) == [(Apply, CONTROLLER_REVISION)]
    assert made(plan(at(of, new, predecessor=before))) == [(Apply, DEPLOYMENT)]
    taken = plan(at(of, new, deployment(new), server(of), predecessor=before))
    assert made(taken) == [(Apply, CONTROLLER_REVISION), *SERVERS]
    assert (taken.status.phase, taken.status.revision, taken.requeue_after) == ("Ready", 1, 10.0)
    assert said(taken.status, Condition.PROGRESSING) == ("True", Reason.ADOPTING)


@pytest.mark.parametrize(("seconds", "is_over"), [(4, False), (10, True)])
def test_what_served_a_model_before_ends_when_every_node_knows(seconds, is_over):
    of = model()
    new, before = entry(of, 1, "served"), Object(Meta(name="inference-iris", namespace="shop", uid="before"))
    children = (new, deployment(new), server(of))
    taken = plan(at(of, *children, predecessor=before)).status
    later = at(shown(of, **_fields(taken)), *children, predecessor=before, now=NOW + timedelta(seconds=seconds))
    result = plan(later)
    assert [action.object for action in result.actions if isinstance(action, Delete)] == ([before] if is_over else [])
    assert (said(result.status, Condition.PROGRESSING) == ("False", Reason.SERVED)) is is_over


# Each condition speaks of the revision in hand.


def test_what_was_validated_before_says_nothing_about_a_revision_without_a_script():
    of, old = ready(validateScript="validate.py")
    before = plan(at(of, old, deployment(old), server(of))).status
    assert said(before, Condition.MODEL_VALIDATED) == ("True", Reason.VALIDATED)
    of = changed(shown(of, **_fields(before)), validate_script="", version="v2")
    new = entry(of, 2)
    for children in ((old, deployment(old)), (old, new, deployment(old)), (old, new, deployment(new))):
        told = condition(plan(at(of, *children)).status, Condition.MODEL_VALIDATED)
        assert (told.status, told.reason, told.observed_generation) == ("Unknown", Reason.NO_SCRIPT, 2)


def test_a_pin_that_is_on_its_way_is_not_told_as_done():
    of, old, new = updated()
    new = msgspec.structs.replace(new, outcome="served")
    of = shown(changed(of, rollback_to=2), revision=2)
    of = shown(of, conditions=plan(at(of, old, new, deployment(new), server(of))).status.conditions)
    assert said(of.status, Condition.ROLLED_BACK) == ("True", Reason.PINNED)
    result = plan(at(changed(of, rollback_to=1), old, new, deployment(new), server(of))).status
    told = condition(result, Condition.ROLLED_BACK)
    assert (told.status, told.reason, told.observed_generation) == ("False", Reason.ROLLING_OUT, 4)
    assert told.message == "Revision 1 (version v1) is being rolled out because spec.rollbackTo names it."


def test_a_revision_that_was_undone_is_the_one_that_conditions_speak_of():
    of, old, new = updated()
    new = msgspec.structs.replace(new, digest="sha256:" + "cd" * 32)
    of = shown(of, conditions=plan(at(of, old, deployment(old))).status.conditions)
    found = Failure(step="Deploy", reason="CrashLoop", message="It ended.", revision=new.hash, failure_time=ago(9))
    result = plan(at(shown(of, failure=found), old, new, deployment(old))).status
    assert "cdcd" in condition(result, Condition.MODEL_DOWNLOADED).message
    generations = {row.type: row.observed_generation for row in result.conditions}
    assert set(generations.values()) == {2}, generations


# Going back.


def test_a_revision_is_pinned_by_its_number():
    of, old, new = updated()
    new = msgspec.structs.replace(new, outcome="served")
    of = shown(changed(of, rollback_to=1), revision=2)
    begun = plan(at(of, old, new, deployment(new), server(of, of_revision=new.hash)))
    assert (template(begun), begun.status.candidate, begun.status.revision) == (old.hash, old.hash, 2)
    done = plan(at(of, old, new, deployment(old), server(of, of_revision=old.hash)))
    assert (done.status.revision, done.status.version) == (1, "v1")
    assert said(done.status, Condition.ROLLED_BACK) == ("True", Reason.PINNED)
    freed = plan(at(changed(shown(of, revision=1), rollback_to=None), old, new, deployment(old)))
    assert template(freed) == new.hash


def test_a_revision_that_failed_is_tried_again_after_another_was_asked_for():
    """As `skysail rollback` says: to pin the one that failed changes nothing, to pin the other one and let go does."""
    of, old, new = updated()
    failed_ = msgspec.structs.replace(new, outcome="failed")
    served = (deployment(old), server(of, of_revision=old.hash))
    assert template(plan(at(changed(of, rollback_to=2), old, failed_, *served))) == old.hash
    pinned = plan(at(changed(of, rollback_to=1), old, failed_, *served))
    assert [each.get(Label.OUTCOME) for each in labels(pinned) if each[Label.REVISION] == new.hash] == [None]
    assert template(plan(at(of, old, new, *served))) == new.hash


def test_a_pin_that_is_not_in_the_history_changes_nothing_and_says_what_is():
    of, old, _ = updated()
    result = plan(at(changed(of, rollback_to=7), old, deployment(old), server(of, of_revision=old.hash)))
    assert (template(result), result.status.phase) == (old.hash, "Ready")
    assert said(result.status, Condition.UPDATE_FAILED) == ("True", Reason.REVISION_NOT_FOUND)
    assert result.status.message.startswith("spec.rollbackTo is 7, but the history has 1:")
    empty = plan(at(model(rollbackTo=7)))
    assert (empty.actions, empty.status.phase) == ((), "Failed")


def test_a_revision_that_was_served_once_and_fails_now_is_undone():
    of, old, new = updated()
    new = msgspec.structs.replace(new, outcome="served")
    of = shown(changed(of, rollback_to=1), revision=2)
    bad = server(of, ready=False, waiting="CrashLoopBackOff", exit=1, restarts=3, of_revision=old.hash)
    first = plan(at(of, old, new, deployment(old, replicas=2, available=1), bad))
    second = plan(at(shown(of, failure=first.status.failure), old, new, deployment(old, replicas=2, available=1), bad))
    assert (template(second), labels(second)[0][Label.OUTCOME]) == (new.hash, "failed")


def test_what_is_served_again_is_the_newest_again_unless_its_number_was_named():
    of = model()
    old, other = entry(of, 1, "served"), entry(changed(of, version="w2"), 2, "served")
    again = plan(at(shown(of, revision=2), old, other, deployment(old), server(of)))
    made = next(action for action in again.actions if action.resource == CONTROLLER_REVISION)
    assert (made.manifest["revision"], again.status.revision) == (3, 3)
    pinned = changed(changed(of, version="w2"), rollback_to=1)
    kept = plan(at(shown(pinned, revision=1), old, other, deployment(old), server(of)))
    assert ([a for a in kept.actions if a.resource == CONTROLLER_REVISION], kept.status.revision) == ([], 1)


def test_ten_revisions_are_kept_and_never_less_than_the_one_that_is_served():
    of = model()
    old = [entry(changed(of, version=f"w{number}"), number, "served") for number in range(2, 14)]
    now = entry(of, 1, "served")
    result = plan(at(shown(of, revision=1), now, *old, deployment(now), server(of)))
    gone = [action.object.revision for action in result.actions if isinstance(action, Delete)]
    assert gone == [2, 3, 4]


def test_revisions_that_failed_go_first_and_the_last_good_one_never():
    of = model()
    bad = [entry(changed(of, version=f"w{number}"), number, "failed") for number in range(2, 14)]
    good, now = entry(changed(of, version="good"), 1, "served"), entry(of, 14, "failed")
    result = plan(at(shown(of, revision=1), good, *bad, now, deployment(good)))
    gone = [action.object.revision for action in result.actions if isinstance(action, Delete)]
    assert gone == [2, 3, 4, 5]


# The number of servers.


def test_a_fixed_number_is_set_and_never_part_of_what_is_applied():
    of, old = ready(model(ml=True, replicas=3))
    result = plan(at(of, old, deployment(old, replicas=1)))
    patch_spec = next(action for action in result.actions if isinstance(action, PatchSpec))
    assert patch_spec.spec == {"replicas": 3}
    applied = next(action for action in result.actions if isinstance(action, Apply) and action.resource == DEPLOYMENT)
    assert "replicas" not in applied.manifest["spec"]
    assert result.actions.index(patch_spec) < result.actions.index(applied)


def test_an_autoscaler_sets_the_number_alone():
    of, old = ready(autoscale=True, minReplicas=2)
    result = plan(at(of, old, deployment(old, replicas=5)))
    assert made(result) == [*SERVERS, (Apply, HORIZONTAL_POD_AUTOSCALER)]


def test_the_number_is_set_only_when_the_autoscaler_has_gone():
    of, old = ready()
    scaler = Object(Meta(name="iris", uid="h"))
    assert made(plan(at(of, old, deployment(old, replicas=5), autoscaler=scaler))) == [
        *SERVERS,
        (Delete, HORIZONTAL_POD_AUTOSCALER),
    ]
    assert (PatchSpec, DEPLOYMENT) in made(plan(at(of, old, deployment(old, replicas=5))))


def test_servers_that_are_added_do_not_make_a_model_unready():
    of, old = ready(model(ml=True, replicas=3))
    result = plan(at(of, old, deployment(old, replicas=3, available=1), server(of)))
    assert (result.status.phase, said(result.status, Condition.READY)) == ("Ready", ("True", Reason.SERVED))
    assert result.status.candidate == ""


def test_a_refusal_to_make_servers_is_told():
    of, old = ready(model(ml=True, replicas=3))
    result = plan(at(of, old, deployment(old, replicas=3, available=1, refusal="exceeded quota: few"), server(of)))
    assert condition(result.status, Condition.PROGRESSING).reason == Reason.QUOTA_EXCEEDED


def test_a_volume_that_is_not_mounted_is_told():
    of = model()
    new = entry(of)
    pending = server(of, ready=False, waiting="PodInitializing")
    told = PodEvent("server-0", "FailedMount", "timed out waiting")
    result = plan(at(of, new, deployment(new, available=0), pending, pod_event=told))
    assert condition(result.status, Condition.PROGRESSING).reason == Reason.VOLUME_UNAVAILABLE


@pytest.mark.parametrize(("age", "seconds"), [(0, 10), (20, 10), (60, 30), (400, 200), (3600, 300)])
def test_the_longer_a_pod_does_not_come_the_rarer_is_asked_why(age, seconds):
    of = model()
    new, made_then = entry(of), {"creationTimestamp": ago(age)}
    pending = preparer(of, "Pending", waiting="ContainerCreating", metadata=made_then)
    server_ = server(of, ready=False, waiting="PodInitializing", metadata=made_then)
    assert plan(at(of, job(of, seconds=age))).requeue_after == seconds
    assert plan(at(of, job(of), pending)).requeue_after == seconds
    assert plan(at(of, new, deployment(new, available=0), server_)).requeue_after == seconds
    unscheduled = server(of, ready=False, unscheduled="0/1 nodes: cpu", metadata=made_then)
    assert plan(at(of, new, deployment(new, available=0), unscheduled)).requeue_after is None, "a watch tells of it"


@pytest.mark.parametrize(("age", "seconds"), [(1, 2), (30, 10), (300, 30), (7200, 60)])
def test_the_longer_a_download_lasts_the_rarer_is_asked_how_far_it_is(age, seconds):
    of = model()
    result = plan(at(of, job(of), preparer(of, ran=age)))
    assert result.requeue_after == seconds


def test_what_is_over_in_a_moment_is_told_by_what_comes_of_it():
    """Each sentence costs a write, and nobody reads those that are gone at once."""
    of = model()
    begun = plan(at(of)).status
    of = shown(of, **_fields(begun))
    for children in ((), (preparer(of, "Pending"),), (preparer(of, ran=1),), (preparer(of, "Succeeded"),)):
        assert plan(at(of, job(of), *children)).status == begun
    later = plan(at(of, job(of), preparer(of, ran=5))).status
    assert later.message == "The model is being downloaded."
    of = shown(of, **_fields(later))
    assert plan(at(of, job(of), preparer(of, "Succeeded"))).status == later
    new = msgspec.structs.replace(entry(of), bytes=1_500_000, files=2)
    start = plan(at(of, job(of, "Complete"), preparer(of, "Succeeded"))).status
    of = shown(of, **_fields(start))
    starting = server(of, ready=False, waiting="PodInitializing")
    for children in ((), (deployment(new, replicas=1, available=0),), (deployment(new, available=0), starting)):
        assert plan(at(of, new, *children)).status == start


# The end, and what is wrong.


def test_a_deleted_model_lets_go_of_finalizers_that_nobody_removes():
    gone = {"deletion_timestamp": ago(1), "finalizers": ("mlmodel.finalizer",)}
    result = plan(at(model(ml=True, metadata=gone)))
    assert (made(result), result.status) == ([(SetFinalizers, model(ml=True) and result.actions[0].resource)], None)
    held = plan(at(model(ml=True, metadata={**gone, "finalizers": ("foregroundDeletion",)})))
    assert (held.actions, held.status.phase) == ((), "Terminating")


def test_a_wrong_spec_changes_nothing_and_says_what_to_change():
    result = plan(at(model(ml=True, modelURL="")))
    assert (result.actions, result.status.phase) == ((), "Failed")
    assert said(result.status, Condition.ACCEPTED) == ("False", Reason.INVALID_SPEC)
    assert "spec.modelURL is empty" in result.status.message
    assert events(result) == [Reason.INVALID_SPEC]
    of, old = ready(model(ml=True, modelURL=""))
    kept = plan(at(of, old, deployment(old)))
    assert (template(kept), kept.status.phase) == (old.hash, "Ready")


def test_planner_servers_missing_in_history_keep_folder_and_revision_number():
    of = model(ml=True)
    lost = entry(changed(of, model_url="https://models.example.com/old.onnx"), 7, "served")
    begun = plan(at(shown(of, revision=7), deployment(lost), server(of, of_revision=lost.hash)))
    words = next(action for action in begun.actions if action.resource == JOB).manifest["spec"]["template"]["spec"]
    args = words["containers"][0]["args"]
    assert args[args.index("--keep") + 1] == lost.hash
    found = plan(at(shown(of, revision=7), deployment(lost), job(of, "Complete"), preparer(of, "Succeeded")))
    made = next(action for action in found.actions if action.resource == CONTROLLER_REVISION)
    assert made.manifest["revision"] == 8


def test_what_the_server_refuses_is_told_and_is_no_progress():
    taken = Event(Reason.NAME_CONFLICT, "Service iris-service belongs to MLModel iris. Delete or rename it.")
    of, new = model(), entry(model())
    moving = plan(at(of, new)).status
    result = refused(at(shown(of, **_fields(moving)), new), taken).status
    assert (result.phase, result.message) == ("Failed", taken.message)
    for type_ in (Condition.ACCEPTED, Condition.PROGRESSING, Condition.READY):
        assert said(result, type_) == ("False", Reason.NAME_CONFLICT)
    again = plan(at(shown(of, **_fields(result)), new)).status
    assert (again.phase, said(again, Condition.ACCEPTED)) == ("Deploying", ("True", Reason.ACCEPTED))


def test_what_is_served_stays_ready_when_a_change_is_refused():
    of, old = ready()
    served = plan(at(of, old, deployment(old), server(of))).status
    result = refused(at(shown(of, **_fields(served)), old), Event(Reason.NAME_CONFLICT, "It is taken.")).status
    assert (result.phase, said(result, Condition.READY)) == ("Ready", ("True", Reason.SERVED))
    assert said(result, Condition.PROGRESSING) == ("False", Reason.NAME_CONFLICT)


def test_an_unmaintained_server_is_warned_about_when_its_download_begins():
    of = model(runtime="torchserve")
    first = plan(at(of))
    assert events(first) == [EventReason.DOWNLOADING, EventReason.RUNTIME_UNMAINTAINED]
    of = shown(of, candidate=first.status.candidate, conditions=first.status.conditions)
    assert events(plan(at(of, job(of), preparer(of)))) == []


# Whatever is there.

_ends = st.sampled_from(["", "Complete", "Failed", "SuccessCriteriaMet"])
_outcomes = st.sampled_from(["", "served", "failed"])


@given(st.data())
def test_servers_are_only_ever_made_from_the_history(data):
    """Whatever is seen: what is asked for is a revision that was found good, and one that failed only if none else."""
    of = shown(model(), revision=data.draw(st.integers(0, 3)))
    versions = data.draw(st.lists(st.sampled_from(["v1", "v2", "v3"]), unique=True))
    history = [
        entry(changed(of, version=version), number, data.draw(_outcomes))
        for number, version in enumerate(versions, start=1)
    ]
    children = list(history)
    if data.draw(st.booleans()):
        children.append(job(of, data.draw(_ends)))
    if history and data.draw(st.booleans()):
        there = data.draw(st.sampled_from(history))
        children.append(
            deployment(there, late=data.draw(st.sampled_from(("", LATE))), available=data.draw(st.integers(0, 1)))
        )
    result = plan(at(of, *children))
    applied = [action for action in result.actions if isinstance(action, Apply) and action.resource == DEPLOYMENT]
    wanted = [action.manifest["spec"]["template"]["metadata"]["labels"][Label.REVISION] for action in applied]
    assert {each.hash for each in history} >= set(wanted)
    assert not {each.hash for each in history if each.outcome == "failed"} & set(wanted)
    assert plan(at(of, *children)) == result


@pytest.mark.parametrize("before", [0, 1, 5])
def test_a_failed_download_shows_in_its_condition_before_any_retry_and_during_it(before):
    of = tried(model(), before) if before else model()
    first = plan(at(of, job(of, "Failed"), preparer(of, "Failed", exit=75, said=TRANSIENT)))
    shown_ = condition(first.status, Condition.MODEL_DOWNLOADED)
    assert (shown_.status, shown_.reason, shown_.message) == (
        "False",
        Reason.UNREACHABLE,
        "models.example.com does not answer.",
    )
    assert any(event.warning and "does not answer" in event.message for event in first.events)
    again = msgspec.structs.replace(of, status=first.status)
    running = plan(at(again, job(of, seconds=5), preparer(of)))
    assert said(running.status, Condition.MODEL_DOWNLOADED) == ("False", Reason.UNREACHABLE)
    well = plan(at(again, job(of, "Complete"), preparer(of, "Succeeded")))
    assert said(well.status, Condition.MODEL_DOWNLOADED) == ("True", Reason.DOWNLOADED)


def test_a_failure_gives_its_fix_once():
    of = model()
    result = plan(at(of, job(of, "Failed"), preparer(of, "Failed", exit=78, said=MISSING)))
    assert result.status.message == "There is nothing at models.example.com/iris.onnx. A new spec.version retries it."


HOUR = 3600


@pytest.mark.parametrize(
    ("seconds", "age", "replicas", "period"),
    [
        (HOUR, 40 * 60, 1, 7),
        (HOUR, 51 * 60, 1, 8),
        (HOUR, 39 * 60, 2, 7),
        (HOUR, 41 * 60, 2, 8),
        (24 * HOUR, 19 * HOUR, 1, 7),
        (24 * HOUR, 20 * HOUR, 1, 8),
        (24 * HOUR, 16 * HOUR, 2, 8),
        (30 * 24 * HOUR, 29 * 24 * HOUR, 1, 7),
    ],
)
def test_servers_at_a_cloud_are_replaced_before_their_claims_end(seconds: int, age: int, replicas: int, period: int):
    """A policy, a budget or the cloud decides how long a claim lasts. Several servers are replaced one by one."""
    found = at_cloud(seconds, age, replicas=replicas)
    made_ = plan(found)
    assert period_of(made_) == str(period)
    if period == 7:
        assert made_.requeue_after is not None
        assert 0 < made_.requeue_after <= seconds - age


def test_servers_of_an_earlier_period_or_revision_do_not_start_the_next_one():
    for changes in ({"period": "6"}, {"of_revision": "other"}):
        found = at_cloud(HOUR, 55 * 60, **changes)
        assert period_of(plan(found)) == "7"
        assert plan(found).requeue_after is None


FULL = "Namespace shop has 1 instances, and OffloadPolicy default allows 1: wait, or raise spec.maxInstances."


@pytest.mark.parametrize("late", ["", LATE])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_server_at_a_cloud_that_a_policy_holds_up_names_it_and_the_spare_instance(late, is_replaced):
    of = model(annotations={"skysail.dev/offload": "runpod"})
    known = entry(of, 1, "served")
    held = server(of, 1, ready=False, waiting="InstanceLimitReached", said=FULL)
    up = deployment(known, available=0, late=late)
    found = condition(
        plan(at(shown(of, revision=1), known, up, held, *([server(of)] if is_replaced else []))).status,
        Condition.PROGRESSING,
    )
    spare = " To replace a server, one more instance must be allowed." if is_replaced else ""
    assert (found.reason, found.message) == (
        Reason.INSTANCE_LIMIT_REACHED,
        f"Server server-1 does not start: {FULL}{spare}",
    )


def period_of(plan_):
    (apply,) = [each for each in plan_.actions if isinstance(each, Apply) and each.resource is DEPLOYMENT]
    return apply.manifest["spec"]["template"]["metadata"]["annotations"]["skysail.dev/period"]


NOT_AT_CLOUD = [{"key": "skysail.dev/at-cloud", "operator": "DoesNotExist"}]


@pytest.mark.parametrize(
    ("was_at_cloud", "deployed", "expected"),
    [
        (False, "", None),
        (False, "without", None),
        (False, "with", NOT_AT_CLOUD),
        (True, "", NOT_AT_CLOUD),
        (True, "without", None),
        (True, "other", NOT_AT_CLOUD),
    ],
)
def test_only_a_model_that_was_at_a_cloud_ignores_servers_there(was_at_cloud, deployed, expected):
    """Another template restarts servers, so those of a model that has nothing to do with clouds keep theirs."""
    of = model(ml=True)
    known = entry(of, 2, "served")
    away = entry(model(ml=True, annotations={"skysail.dev/offload": "modal"}), 1, "served")
    up = deployment(away if deployed == "other" else known)
    selector = {"labelSelector": {"matchLabels": {}, "matchExpressions": NOT_AT_CLOUD if deployed == "with" else None}}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [selector]}}
    template_ = msgspec.structs.replace(up.spec.template, spec=TemplateSpec(affinity=affinity))
    up = msgspec.structs.replace(up, spec=msgspec.structs.replace(up.spec, template=template_))
    found = at(shown(of, revision=2), known, *([away] if was_at_cloud else []), *([up] if deployed else []))
    (apply,) = [each for each in plan(found).actions if isinstance(each, Apply) and each.resource is DEPLOYMENT]
    assert near(apply.manifest["spec"]["template"]) == expected


@pytest.mark.parametrize("was_at_cloud", [False, True])
def test_download_of_a_model_that_was_at_a_cloud_ignores_servers_there(was_at_cloud):
    away = entry(model(ml=True, annotations={"skysail.dev/offload": "modal"}), 1, "served")
    found = at(shown(model(ml=True), revision=1), *([away] if was_at_cloud else []))
    (create,) = [each for each in plan(found).actions if isinstance(each, Create) and each.resource is JOB]
    assert near(create.manifest["spec"]["template"]) == (NOT_AT_CLOUD if was_at_cloud else None)


def near(template_):
    (term,) = template_["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return term["labelSelector"].get("matchExpressions")


def at_cloud(seconds: int, age: int, *, replicas: int = 1, period: str = "7", of_revision: str = ""):
    """Servers of period 7 whose claims were launched `age` seconds ago for `seconds`."""
    of = model(annotations={"skysail.dev/offload": "runpod"})
    known = entry(of, 1, "served")
    up = deployment(known, replicas=replicas)
    metadata = msgspec.structs.replace(up.spec.template.metadata, annotations={"skysail.dev/period": "7"})
    template_ = msgspec.structs.replace(up.spec.template, metadata=metadata)
    up = msgspec.structs.replace(up, spec=msgspec.structs.replace(up.spec, template=template_))
    annotations = {"skysail.dev/period": period, "skysail.dev/deadline": ago(age - seconds)}
    pod = {"creationTimestamp": ago(age), "annotations": annotations}
    pods = [server(of, number, of_revision=of_revision, metadata=pod) for number in range(replicas)]
    return at(shown(of, revision=1), known, up, *pods)
