"""What made a revision fail: which step, which container, and what to do about it."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import msgspec
import pytest

from skysail.base.names import Reason
from skysail.kinds.serving.api.types import Failure
from skysail.kinds.serving.plan import failure, pending
from tests.unit.kinds.serving.builders import (
    LATE,
    NOW,
    PREPARED,
    ago,
    at,
    deployment,
    entry,
    job,
    model,
    preparer,
    revision,
    server,
)

SCRIPT = {"validateScript": "validate.py"}
AT_MODAL = {"skysail.dev/offload": "modal"}
LOW = "The node was low on resource: ephemeral-storage. Container fetch was using 90Gi."


def of_preparation(pod=None, **spec):
    of = model(**spec)
    children = [job(of, "Failed")] + ([pod(of)] if pod else [])
    return failure.prepare_failure(at(of, *children), children[0])


def failed(**state):
    return lambda of: preparer(of, "Failed", **state)


def word(reason, message="There it is.", step="Download"):
    return json.dumps({"step": step, "reason": reason, "message": message})


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"exit": 65, "said": word("ChecksumMismatch")}, ("Download", Reason.CHECKSUM_MISMATCH, 65, False)),
        (
            {"exit": 65, "said": word("UnsupportedFormat", step="Layout")},
            ("Layout", Reason.UNSUPPORTED_FORMAT, 65, False),
        ),
        ({"exit": 75, "said": word("Unreachable")}, ("Download", Reason.UNREACHABLE, 75, True)),
        ({"exit": 75, "said": word("ServerError", step="Layout")}, ("Layout", Reason.SERVER_ERROR, 75, True)),
        ({"exit": 75, "said": '{"x": ' + "[" * 3000}, ("Download", Reason.DOWNLOAD_FAILED, 75, True)),
        (
            {"validates": "Failed", "exit": 78, "said": '{"x": ' + "[" * 3000},
            ("Validate", Reason.SCRIPT_NOT_FOUND, 78, False),
        ),
        ({"exit": 75, "said": "cut off {"}, ("Download", Reason.DOWNLOAD_FAILED, 75, True)),
        ({"exit": 77, "said": word("AddressForbidden")}, ("Download", Reason.ADDRESS_FORBIDDEN, 77, False)),
        ({"exit": 65, "said": word("rm -rf")}, ("Download", Reason.DOWNLOAD_FAILED, 65, False)),
        ({"exit": 65, "said": word("EmptyModel", step="../..")}, ("Download", Reason.EMPTY_MODEL, 65, False)),
        ({"exit": 1, "said": ""}, ("Download", Reason.DOWNLOAD_FAILED, 1, False)),
        ({"exit": 143, "said": word("Interrupted")}, ("Download", Reason.INTERRUPTED, 143, True)),
        ({"exit": 137, "why": "OOMKilled"}, ("Download", Reason.OUT_OF_MEMORY, 137, False)),
        ({"validates": "Failed", "exit": 3}, ("Validate", Reason.VALIDATION_FAILED, 3, False)),
        ({"validates": "Failed", "exit": 75}, ("Validate", Reason.VALIDATION_FAILED, 75, False)),
        ({"validates": "Failed", "exit": 78}, ("Validate", Reason.SCRIPT_NOT_FOUND, 78, False)),
        ({"validates": "Failed", "exit": 137, "why": "OOMKilled"}, ("Validate", Reason.OUT_OF_MEMORY, 137, False)),
        ({"validates": "Failed", "exit": 143}, ("Validate", Reason.INTERRUPTED, 143, True)),
    ],
)
def test_a_container_tells_the_step_and_whether_it_may_pass(state, expected):
    found = of_preparation(failed(**state), **SCRIPT)
    told = found.failure
    assert (told.step, told.reason, told.exit_code, found.is_transient) == expected
    assert (told.revision, told.failure_time) == (revision(model(**SCRIPT)), ago(10))


def test_a_pod_that_is_gone_may_have_done_nothing_wrong():
    found = of_preparation()
    assert (found.failure.reason, found.is_transient, found.crash) == (Reason.INTERRUPTED, True, None)
    assert "so says the controller" in found.failure.message


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"reason": "Evicted", "told": LOW}, LOW),
        ({"reason": "Evicted", "told": LOW, "disrupted": ("TerminationByKubelet", LOW), "exit": 137}, LOW),
        ({"disrupted": ("PreemptionByScheduler", "default-scheduler: preempting"), "exit": 143}, "preempting."),
        ({"disrupted": ("DeletionByPodGC", "PodGC: node not found"), "exit": 65}, "PodGC: node not found."),
        ({"disrupted": ("DeletionByTaintManager", "")}, "DeletionByTaintManager."),
        ({"disrupted": ("TerminationByKubelet", LOW), "validates": "Failed", "exit": 137}, LOW),
    ],
)
def test_a_pod_that_is_taken_away_says_by_whom_and_is_tried_again(state, words):
    """A node without room evicts each try: who is told nothing waits for ever."""
    found = of_preparation(failed(**state), **SCRIPT)
    assert (found.failure.reason, found.is_transient) == (Reason.INTERRUPTED, True)
    assert "pod prepare-0" in found.failure.message
    assert words in found.failure.message
    assert found.failure.step == ("Validate" if "validates" in state else "Download")


LOST = "The container ended together with the node agent, which has been restarted."


@pytest.mark.parametrize(
    ("state", "is_counted"),
    [
        ({"reason": "Lost", "told": LOST, "disrupted": ("TerminationByKubelet", LOST), "exit": 137}, False),
        ({"reason": "Lost", "disrupted": ("TerminationByKubelet", LOST), "exit": 137, "validates": "Failed"}, False),
        ({"disrupted": ("PreemptionByScheduler", "preempting"), "exit": 143}, False),
        ({"disrupted": ("DeletionByTaintManager", "")}, False),
        ({"disrupted": ("EvictionByEvictionAPI", "drained"), "exit": 143}, False),
        ({"exit": 137, "why": "Lost", "said": LOST}, False),
        ({"exit": 137, "why": "ContainerStatusUnknown", "said": "The container could not be located"}, False),
        ({"exit": 137, "why": "Lost", "said": LOST, "validates": "Failed"}, False),
        ({"reason": "Evicted", "told": LOW, "exit": 137}, True),
        ({"reason": "Evicted", "told": LOW, "disrupted": ("TerminationByKubelet", LOW), "exit": 137}, True),
        ({"exit": 143, "said": word("Interrupted")}, True),
    ],
)
def test_what_ends_with_its_node_is_interrupted_and_no_failed_attempt(state, is_counted):
    found = of_preparation(failed(**state), **SCRIPT)
    assert (found.failure.reason, found.is_transient, found.is_counted) == (Reason.INTERRUPTED, True, is_counted)
    assert not re.search("exit code|exited with", found.failure.message)


@pytest.mark.parametrize(("said", "end"), [("", "node."), ("gone\nfor good", "node: for good.")])
def test_lost_container_message_ends_with_last_log_line(said, end):
    found = of_preparation(failed(exit=137, why="Lost", said=said))
    assert found.failure.message == f"Container fetch of pod prepare-0 was lost by its {end}"


@pytest.mark.parametrize(("why", "is_counted"), [("Error", True), ("OOMKilled", True), ("Lost", False)])
def test_the_reason_and_not_the_code_says_whether_a_node_lost_it(why, is_counted):
    found = of_preparation(failed(exit=137, why=why))
    assert (found.is_counted, found.failure.reason == Reason.INTERRUPTED) == (is_counted, not is_counted)


@pytest.mark.parametrize("is_init", [True, False])
@pytest.mark.parametrize("why", ["Lost", "ContainerStatusUnknown"])
def test_servers_that_their_node_lost_did_not_crash(is_init, why):
    of = model()
    bad = server(of, ready=False, init=is_init, exit=137, why=why, said=LOST, restarts=9)
    snapshot = at(of, deployment(entry(of), available=0), bad)
    assert failure.rollout_failure(snapshot, entry(of)) is None
    assert pending.rollout_pending(snapshot, entry(of)).reason != Reason.CRASH_LOOP
    late = failure.rollout_failure(at(of, deployment(entry(of), available=0, late=LATE), bad), entry(of)).failure
    assert (late.exit_code, late.reason in {Reason.DOWNLOAD_FAILED, Reason.CRASH_LOOP}) == (None, False)
    killed = server(of, ready=False, init=is_init, exit=137, restarts=9)
    assert failure.rollout_failure(at(of, deployment(entry(of), available=0), killed), entry(of)) is not None


def test_a_download_that_takes_too_long_says_what_to_raise():
    found = of_preparation(failed(reason="DeadlineExceeded", exit=137))
    assert (found.failure.reason, found.is_transient) == (Reason.DEADLINE_EXCEEDED, True)
    assert "prepare_deadline_seconds" in found.failure.message


def test_failure_validation_script_past_deadline_fails_validate_permanently():
    found = of_preparation(failed(reason="DeadlineExceeded", validates="Failed", exit=137), **SCRIPT)
    assert (found.failure.step, found.failure.reason, found.is_transient) == (
        "Validate",
        Reason.DEADLINE_EXCEEDED,
        False,
    )


def test_what_a_script_leaves_as_its_last_word_is_a_sentence():
    said = word("ScriptNotFound", "There is no script check.py.", step="Validate")
    found = of_preparation(failed(validates="Failed", exit=78, said=said), **SCRIPT)
    assert found.failure.message == "There is no script check.py."


def test_memory_is_named_with_its_limit():
    of = model()
    bad = server(of, ready=False, waiting="CrashLoopBackOff", exit=137, why="OOMKilled", restarts=3)
    found = failure.rollout_failure(at(of, deployment(entry(of), available=0), bad), entry(of))
    assert found.failure.reason == Reason.OUT_OF_MEMORY
    assert found.failure.message.startswith("Container inference of pod server-0 ")
    assert ("1Gi" in found.failure.message, "spec.resources.limits.memory" in found.failure.message) == (True, True)


def test_a_download_in_a_server_is_told_in_its_own_words():
    of = model()
    bad = server(of, ready=False, init=True, exit=77, said=word("AccessDenied", "It wants keys."), restarts=3)
    found = failure.rollout_failure(at(of, deployment(entry(of), available=0), bad), entry(of)).failure
    assert (found.step, found.reason, found.message) == ("Deploy", Reason.ACCESS_DENIED, "It wants keys.")


@pytest.mark.parametrize(
    ("spec", "fix"),
    [({}, "set a new spec.version"), ({"rollbackTo": 1}, "remove spec.rollbackTo")],
)
def test_failure_content_overwritten_without_user_checksum_is_not_a_user_error(spec, fix):
    of = model(**spec)
    said = word("ChecksumMismatch", "It is a and should be b: correct `sha256`.")
    bad = server(of, ready=False, init=True, exit=65, said=said, restarts=3)
    snapshot = at(of, entry(of, 1, "served"), deployment(entry(of), available=0), bad)
    found = failure.rollout_failure(snapshot, entry(of)).failure
    assert (found.step, found.reason) == ("Deploy", Reason.CHECKSUM_MISMATCH)
    assert "changed after revision 1" in found.message
    assert (fix in found.message, "sha256" in found.message) == (True, False), found.message
    assert pending.rollout_pending(snapshot, entry(of)).message == f"{found.message} The container is restarted."


@pytest.mark.parametrize("code", [75, 143])
def test_failure_model_source_unavailable_fails_no_revision_before_deadline(code):
    of = model()
    bad = server(of, ready=False, init=True, exit=code, said=word("Unreachable", "It is away."), restarts=5)
    assert failure.rollout_failure(at(of, deployment(entry(of), available=0), bad), entry(of)) is None
    late = failure.rollout_failure(at(of, deployment(entry(of), available=0, late=LATE), bad), entry(of))
    assert late.failure.reason == Reason.UNREACHABLE


@pytest.mark.parametrize(
    "said", [word("AccessDenied", "It wants keys."), "25 MB so far\nAccessDenied: It wants keys.\n"]
)
def test_failure_download_in_a_server_at_a_cloud_has_its_own_reason(said):
    of = model(annotations=AT_MODAL)
    bad = server(of, ready=False, exit=77, said=said, restarts=3)
    found = failure.rollout_failure(at(of, deployment(entry(of), available=0), bad), entry(of)).failure
    assert (found.step, found.reason, found.message) == ("Deploy", Reason.ACCESS_DENIED, "It wants keys.")


def test_failure_source_out_of_reach_of_the_cloud_says_so_and_may_pass():
    of = model(annotations=AT_MODAL)
    bad = server(of, ready=False, exit=75, said="Unreachable: It is away.", restarts=5)
    assert failure.rollout_failure(at(of, deployment(entry(of), available=0), bad), entry(of)) is None
    late = failure.rollout_failure(at(of, deployment(entry(of), available=0, late=LATE), bad), entry(of)).failure
    assert late.reason == Reason.UNREACHABLE
    assert late.message.endswith("The servers download the model at the cloud, which must reach its address.")


def test_a_container_that_was_started_again_has_an_earlier_log():
    of = model()
    runs = server(of, ready=False, exit=1, restarts=3)
    waits = server(of, ready=False, exit=1, restarts=3, waiting="CrashLoopBackOff")
    for pod, is_running in ((runs, True), (waits, False)):
        found = failure.rollout_failure(at(of, deployment(entry(of), available=0), pod), entry(of))
        assert found.crash.is_running is is_running


@pytest.mark.parametrize(
    "pod",
    [
        {"ready": True, "exit": 1, "restarts": 9},
        {"ready": False, "exit": 1, "restarts": 2},
        {"ready": False, "exit": 1, "restarts": 9, "ran": 3600},
        {"ready": False},
        {"ready": False, "exit": 1, "restarts": 9, "of_revision": "another"},
        {"ready": False, "exit": 1, "restarts": 9, "metadata": {"deletionTimestamp": ago(1)}},
    ],
)
def test_servers_that_may_still_answer_have_not_failed(pod):
    of = model()
    assert failure.rollout_failure(at(of, deployment(entry(of), available=0), server(of, **pod)), entry(of)) is None


def test_servers_of_another_revision_have_not_failed():
    of = model()
    bad = server(of, ready=False, exit=1, restarts=9)
    assert failure.rollout_failure(at(of, deployment("another", available=0), bad), entry(of)) is None
    outdated = deployment(entry(of), available=0, late=LATE, observedGeneration=2)
    assert failure.rollout_failure(at(of, outdated), entry(of)) is None


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({}, ""),
        ({"runtimeImage": "mine:1"}, "/v2/models/iris/ready"),
        ({"runtimeImage": "mine:1", "annotations": {"skysail.dev/ready-path": "/up"}}, "/up"),
    ],
    ids=["ours", "theirs", "theirs, told"],
)
def test_an_image_of_ones_own_that_is_never_ready_is_told_where_it_is_asked(spec, path):
    of = model(**spec)
    known = entry(of)
    waits = server(of, ready=False)
    found = failure.rollout_failure(at(of, deployment(known, available=0, late=LATE), waits), known).failure
    assert found.reason == Reason.NOT_READY
    assert ("skysail.dev/ready-path" in found.message, f"{path} on port 8000" in found.message) == (
        (True, True) if path else (False, False)
    )


def test_the_last_line_of_a_container_is_in_its_sentence():
    of = model()
    bad = server(of, ready=False, exit=1, said="Traceback\n  line\nValueError: bad layer\n", restarts=3)
    found = failure.rollout_failure(at(of, deployment(entry(of), available=0), bad), entry(of)).failure
    assert found.message == "Container inference of pod server-0 exited with code 1: ValueError: bad layer."


@pytest.mark.parametrize(
    "state",
    [
        {"exit": 1, "said": "\x1b[31mloading\rValueError: bad layer\x07\x1b[0m"},
        {"init": True, "exit": 77, "said": word("AccessDenied", "\x1b]0;mine\x07Value\x1b[1mError: bad layer.")},
    ],
)
def test_what_a_container_leaves_does_nothing_to_the_terminal_of_its_reader(state):
    of = model()
    bad = server(of, ready=False, restarts=3, **state)
    found = failure.rollout_failure(at(of, deployment(entry(of), available=0), bad), entry(of)).failure
    assert (found.message.isprintable(), found.message.endswith("ValueError: bad layer.")) == (True, True)


@pytest.mark.parametrize(
    ("said", "digest"),
    [
        (PREPARED, True),
        ('{"digest": ""}', True),
        ("", False),
        ('{"digest": 3}', False),
        ('{"x": ' + "[" * 3000, False),
        ('{"digest": "\\u001b[31m"}', False),
    ],
)
def test_what_a_download_came_to_is_its_last_word(said, digest):
    assert (failure.prepared(preparer(model(), "Succeeded", done=said)) is not None) is digest


def test_the_last_word_is_that_of_the_pod_that_ended_well():
    of = model()
    gone = preparer(of, "Failed", exit=143, metadata={"name": "z", "uid": "z"})
    assert failure.succeeded_pod((gone, preparer(of, "Succeeded"))) == preparer(of, "Succeeded")
    assert failure.succeeded_pod((gone,)) is None


def test_an_interruption_is_not_counted_and_tried_again_soon():
    first = Failure(step="Download", reason="Interrupted", revision="a", failure_time=ago(9))
    none = failure.with_attempt_count(None, first, is_attempt=False)
    assert (none.attempts, failure.next_retry(none)) == (0, NOW - timedelta(seconds=4))
    assert not failure.is_persistent(none)
    away = msgspec.structs.replace(none, failure_time=ago(3), attempts=2)
    later = Failure(step="Download", reason="Interrupted", revision="a", failure_time=ago(1))
    assert failure.with_attempt_count(away, later, is_attempt=False).attempts == 2


def test_one_end_is_counted_once():
    first = Failure(step="Download", reason="Unreachable", revision="a", failure_time=ago(9))
    once = failure.with_attempt_count(None, first)
    assert failure.with_attempt_count(once, first) == once
    later = Failure(step="Download", reason="Unreachable", revision="a", failure_time=ago(3))
    assert failure.with_attempt_count(once, later).attempts == 2
    other = Failure(step="Download", reason="Unreachable", revision="b", failure_time=ago(3))
    assert failure.with_attempt_count(once, other).attempts == 1
