"""Which pod made an attempt fail, and whose fault it was."""

from __future__ import annotations

import msgspec
import pytest

from skysail.kinds.training.api.training_job import Failure
from skysail.kinds.training.plan.failure import find_failure, message, with_log
from tests.unit.kinds.training.builders import CHIEF, ago, child, deleted, disruption, job, pod, snapshot

ELASTIC = {"elastic": {"min": 1, "max": 4}}


def mishap(of, *children):
    return find_failure(of.spec, snapshot(of, *children).run(0))


def failed(of, role="worker", **more):
    return child(of, role, end="Failed", **{"reason": "BackoffLimitExceeded", **more})


def test_while_everything_runs_nothing_has_failed():
    of = job()
    assert mishap(of, child(of), pod(0), pod(1)) is None
    assert mishap(of, child(of), pod(0, "Succeeded"), pod(1)) is None


def test_a_failed_pod_is_judged_when_its_job_is():
    of = job()
    assert mishap(of, child(of), pod(0), pod(1, "Failed")) is None
    assert mishap(of, child(of, end="FailureTarget"), pod(0), pod(1, "Failed")).cause == "Failed"


def test_the_first_pod_that_failed_is_to_blame():
    """The others failed because it was missing."""
    of = job(workers=3)
    first = pod(2, "Failed", exit=37, finished=ago(20), why="OOMKilled", said="last words")
    found = mishap(of, failed(of), pod(0, "Failed", finished=ago(10)), pod(1, "Failed", finished=ago(15)), first)
    assert (found.cause, found.pod, found.is_final) == ("Failed", first, False)
    assert found.failure == Failure(
        role="worker",
        index=2,
        pod="mnist-worker-0-2-0",
        node="node-2",
        exit_code=37,
        reason="OOMKilled",
        message="last words",
    )


def test_of_pods_that_failed_in_the_same_second_the_lowest_rank_is_told():
    of = job()
    assert mishap(of, failed(of), pod(1, "Failed"), pod(0, "Failed")).failure.index == 0


@pytest.mark.parametrize(
    ("killed", "other", "blamed"),
    [
        ({"exit": 137}, {"exit": 1}, 1),
        ({"exit": 137, "why": "OOMKilled"}, {"exit": 137}, 1),
        ({"exit": 1, "why": "OOMKilled"}, {"exit": 139}, 1),
        ({"exit": 143}, {"exit": 1}, 0),
        ({"exit": 3, "metadata": deleted(10)}, {"exit": 1}, 0),
    ],
)
def test_in_the_same_second_who_was_killed_is_to_blame_and_not_who_lost_a_peer(killed, other, blamed):
    of = job()
    assert mishap(of, failed(of), pod(0, "Failed", **other), pod(1, "Failed", **killed)).failure.index == blamed


STOPPED = {"exit": 143, "why": "GangFailed"}


@pytest.mark.parametrize(
    "first",
    [{"exit": 9}, {"exit": 9, "finished": ago(5)}, {"exit": 9, "finished": ago(10), "metadata": deleted(10)}],
    ids=["same second", "reported later", "deleted in the same second"],
)
def test_a_rank_that_its_cloud_ended_with_the_gang_is_not_to_blame(first):
    of = job()
    found = mishap(of, failed(of), pod(0, "Failed", **STOPPED, finished=ago(10)), pod(1, "Failed", **first))
    assert (found.cause, found.failure.index, found.failure.exit_code) == ("Failed", 1, 9)


def test_worker_0_of_an_elastic_job_that_its_cloud_ended_with_the_gang_is_not_to_blame():
    of = job(**ELASTIC)
    found = mishap(of, child(of), pod(0, "Failed", **STOPPED), pod(1, "Failed", exit=9))
    assert (found.cause, found.failure.index, found.failure.exit_code) == ("Failed", 1, 9)


def test_the_end_of_the_rank_that_failed_first_is_waited_for_while_it_may_come():
    of = job()
    pods = pod(0, "Failed", **STOPPED), pod(1, metadata=deleted(5))
    assert mishap(of, child(of, end="FailureTarget"), *pods) is None
    assert mishap(of, failed(of), *pods).failure.index == 0


def test_the_first_pod_that_failed_is_to_blame_in_whichever_role():
    of = job(**CHIEF)
    server = pod(0, "Failed", role="ps", exit=137, why="OOMKilled", finished=ago(10))
    chief = pod(0, "Failed", role="chief", finished=ago(5))
    for others in ([failed(of, "ps")], [child(of, "ps")]):
        found = mishap(of, failed(of, "chief"), *others, child(of), chief, server)
        assert (found.failure.role, found.pod) == ("ps", server)


@pytest.mark.parametrize("indexes", [{"failedIndexes": "1"}, {}])
def test_of_workers_that_come_back_alone_the_one_that_did_not_is_to_blame(indexes):
    of = job(**CHIEF)
    before = [pod(0, "Failed", exit=3, finished=ago(90000)), pod(0, life=1)]
    worn = [pod(1, "Failed", exit=7, finished=ago(40 - 10 * life), life=life) for life in range(4)]
    found = mishap(of, failed(of, indexes=indexes), child(of, "chief"), child(of, "ps"), *before, *worn)
    assert (found.cause, found.pod, found.is_final) == ("Failed", worn[-1], True)


def test_a_pod_that_had_to_go_yesterday_and_came_back_excuses_nobody():
    of = job(**CHIEF)
    pushed = [pod(0, "Failed", conditions=[disruption("TerminationByKubelet")], finished=ago(90000)), pod(0, life=1)]
    worn = [pod(1, "Failed", exit=7, finished=ago(40 - 10 * life), life=life) for life in range(4)]
    found = mishap(of, failed(of), child(of, "chief"), child(of, "ps"), *pushed, *worn)
    assert (found.cause, found.failure.exit_code) == ("Failed", 7)


DELETED = [
    ("still there", {"phase": "Running"}),
    ("died of it", {"phase": "Failed", "exit": 143, "finished": ago(10)}),
    ("saved, and exits with 0", {"phase": "Succeeded", "finished": ago(10)}),
]


@pytest.mark.parametrize("ended", [row[1] for row in DELETED], ids=[row[0] for row in DELETED])
def test_a_pod_that_somebody_deleted_ends_its_gang_however_it_ends_itself(ended):
    of = job()
    found = mishap(of, child(of), pod(0), pod(1, metadata=deleted(15), **ended))
    assert (found.cause, found.failure.index, found.failure.node, found.failure.reason) == (
        "Deleted", 1, "node-1", "Deleted",
    )  # fmt: skip


def test_that_a_pod_was_deleted_is_seen_also_when_its_job_has_ended():
    of = job(workers=1)
    done = pod(0, "Succeeded", finished=ago(10), metadata=deleted(15))
    assert mishap(of, child(of, end="Complete", shows={"completedIndexes": "0"}), done).cause == "Deleted"
    of = job()
    died = pod(1, "Failed", exit=143, finished=ago(12), metadata=deleted(15))
    assert mishap(of, failed(of), pod(0, "Failed", finished=ago(10)), died).cause == "Deleted"


def test_a_winner_that_was_deleted_has_not_won_whatever_became_of_the_others():
    of = job(framework="tensorflow")
    winner = pod(0, "Succeeded", finished=ago(10), metadata=deleted(15))
    for other in (pod(1, "Failed"), pod(1, metadata=deleted(5))):
        found = mishap(of, child(of, end="Complete"), winner, other)
        assert (found.cause, found.failure.index) == ("Deleted", 0)


def test_who_was_done_before_it_was_deleted_or_drained_ends_nothing():
    of = job()
    for told in ({"metadata": deleted(15)}, {"conditions": [disruption("EvictionByEvictionAPI", at=ago(15))]}):
        assert mishap(of, child(of), pod(0), pod(1, "Succeeded", finished=ago(3000), **told)) is None


def test_who_was_drained_and_saved_and_exits_with_0_is_not_done():
    of = job(workers=1)
    drained = pod(0, "Succeeded", finished=ago(10), conditions=[disruption("EvictionByEvictionAPI", at=ago(15))])
    assert mishap(of, child(of, end="Complete"), drained).cause == "Preempted"


def test_pods_that_the_job_controller_ends_were_not_deleted_by_somebody():
    of = job()
    assert mishap(of, child(of), pod(0, "Failed"), pod(1, metadata=deleted(5))) is None
    of = job(framework="tensorflow")
    assert mishap(of, child(of), pod(0, "Succeeded"), pod(1, metadata=deleted(5))) is None


def test_who_may_come_back_alone_may_be_deleted():
    of = job(**ELASTIC)
    assert mishap(of, child(of), pod(0), pod(1, metadata=deleted(5))) is None
    assert mishap(of, child(of), pod(0, metadata=deleted(5)), pod(1)).cause == "Deleted"


def test_where_all_who_decide_are_done_nothing_else_matters():
    of = job(**CHIEF)
    jobs = [child(of, "chief"), child(of), failed(of, "ps")]
    assert mishap(of, *jobs, pod(0, "Succeeded", role="chief"), pod(0, "Failed", role="ps")) is None


@pytest.mark.parametrize("spec", [ELASTIC, {"framework": "tensorflow"}])
def test_a_job_that_failed_has_failed_although_the_first_worker_is_done(spec):
    of = job(**spec)
    assert mishap(of, failed(of), pod(0, "Succeeded"), pod(1, "Failed")).cause == "Failed"


def test_a_pod_that_its_node_refused_has_a_reason_and_no_exit_code():
    of = job()
    refused = pod(0, "Failed", exit=0, reason="Evicted", message="The node was low on resource.")
    found = mishap(of, failed(of), refused).failure
    assert (found.exit_code, found.reason, found.message) == (None, "Evicted", "The node was low on resource.")


def test_where_the_pod_is_gone_the_job_tells_what_it_knows():
    of = job()
    found = mishap(of, failed(of)).failure
    assert (found.role, found.index, found.pod, found.reason) == ("worker", None, "", "BackoffLimitExceeded")


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("PreemptionByScheduler", "Preempted"),
        ("EvictionByEvictionAPI", "Preempted"),
        ("TerminationByKubelet", "Preempted"),
        ("DeletionByTaintManager", "NodeLost"),
        ("DeletionByPodGC", "NodeLost"),
    ],
)
def test_a_pod_that_has_to_go_ends_its_gang_before_its_job_has_failed(reason, cause):
    of = job()
    found = mishap(of, child(of), pod(0), pod(1, conditions=[disruption(reason)]))
    assert (found.cause, found.failure.index, found.failure.reason) == (cause, 1, reason)


def test_a_pod_that_its_node_lost_ends_the_attempt_at_no_cost():
    of = job()
    gone = pod(1, "Failed", exit=137, why="Lost", reason="Lost", conditions=[disruption("TerminationByKubelet")])
    found = mishap(of, failed(of), pod(0), gone)
    assert (found.cause, found.failure.index, found.failure.reason) == ("NodeLost", 1, "Lost")


def test_peers_that_fail_without_the_one_that_had_to_go_are_not_to_blame():
    of = job()
    gone = pod(1, conditions=[disruption()])
    assert mishap(of, failed(of), pod(0, "Failed", finished=ago(30)), gone).cause == "Preempted"


def test_that_a_pod_had_to_go_is_known_also_when_it_is_gone():
    of = job()
    told = "Pod ml-jobs/mnist-worker-0-1-x7k2p for index 1 has condition DisruptionTarget matching FailJob rule"
    gone = child(of, end="Failed", reason="PodFailurePolicy")
    condition = type(gone.status.conditions[0])("Failed", "True", "PodFailurePolicy", told)
    gone = msgspec.structs.replace(gone, status=type(gone.status)((condition,)))
    found = mishap(of, gone)
    assert (found.cause, found.failure.index, found.failure.pod) == ("Preempted", 1, "mnist-worker-0-1-x7k2p")


def test_who_may_come_back_alone_ends_nothing_when_it_has_to_go():
    of = job(**CHIEF)
    jobs = [child(of, role) for role in ("chief", "worker", "ps")]
    assert mishap(of, *jobs, pod(1, conditions=[disruption()])) is None
    assert mishap(of, *jobs, pod(0, role="ps", conditions=[disruption()])).cause == "Preempted"


def test_who_came_back_alone_as_often_as_allowed_ends_the_job():
    of = job(**CHIEF)
    assert mishap(of, failed(of), pod(1, "Failed")).is_final
    assert not mishap(of, failed(of, "chief"), pod(0, "Failed", role="chief")).is_final


def test_training_does_not_end_because_its_evaluator_cannot():
    of = job(roles={"evaluator": {}})
    assert mishap(of, child(of), failed(of, "evaluator"), pod(0, "Failed", role="evaluator")) is None
    gone = pod(0, "Failed", role="evaluator", conditions=[disruption()])
    assert mishap(of, child(of), failed(of, "evaluator"), gone) is None


def test_elastic_workers_do_without_one_of_them_but_not_without_the_first():
    """There they meet."""
    of = job(**ELASTIC)
    assert mishap(of, child(of), pod(0), pod(1, "Failed")) is None
    assert mishap(of, child(of), pod(0), pod(1, conditions=[disruption()])) is None
    assert mishap(of, child(of), pod(0, "Failed"), pod(0, life=1)).cause == "Failed"
    assert mishap(of, child(of), pod(0, conditions=[disruption()]), pod(1)).cause == "Preempted"


def test_of_what_a_pod_said_the_end_is_kept_as_a_terminal_shows_it():
    said = "".join(f"\r{at}%" for at in range(100)) + "\nValueError: nan"
    assert with_log(Failure(role="worker", message=said), None).message == "99%\nValueError: nan"


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("one\ntwo\n", "one\ntwo"),
        (None, "what the pod said"),
        ("", "what the pod said"),
        ("\n \n", "what the pod said"),
        ("x" * 9000, "x" * 4096),
    ],
)
def test_the_end_of_the_log_is_kept_or_what_the_pod_said(log, message):
    assert with_log(Failure(role="worker", message="what the pod said"), log).message == message


@pytest.mark.parametrize(
    ("failure", "cause", "text"),
    [
        (
            Failure(role="worker", index=1, pod="p", node="n", exit_code=37, reason="Error"),
            "Failed",
            "Worker 1 (pod p on node n) failed with exit code 37.",
        ),
        (
            Failure(role="chief", index=0, exit_code=9, reason="OOMKilled"),
            "Failed",
            "Chief 0 failed with exit code 9 (OOMKilled): raise resources.limits.memory.",
        ),
        (Failure(role="ps", reason="Evicted"), "Failed", "Parameter server failed (Evicted)."),
        (
            Failure(role="worker", index=0, pod="p", node="n", reason="PreemptionByScheduler"),
            "Preempted",
            "Worker 0 (pod p on node n) was preempted or evicted (PreemptionByScheduler).",
        ),
        (
            Failure(role="worker", index=0, pod="p", node="n"),
            "NodeLost",
            "Worker 0 (pod p on node n) was lost with its node.",
        ),
        (
            Failure(role="worker", index=0, pod="p", node="n", reason="Lost"),
            "NodeLost",
            "Worker 0 (pod p on node n) was lost because its node was stopped or restarted.",
        ),
    ],
)
def test_a_failure_is_a_sentence(failure, cause, text):
    assert message(failure, cause) == text
