"""What a job waits for, in one sentence."""

from __future__ import annotations

import msgspec
import pytest

from skysail.base.names import Reason
from skysail.core import pod_pending
from skysail.core.pod_pending import PodEvent, first_stuck_pod
from skysail.kinds.training.plan.pending import pending_reason
from skysail.kinds.training.plan.planner import plan
from tests.unit.kinds.training import builders
from tests.unit.kinds.training.builders import CHIEF, NOW, ago, child, job, pod, snapshot

QUOTA = 'Error creating: pods "mnist-worker-0-1-" is forbidden: exceeded quota: gpus, requested: nvidia.com/gpu=1'


def wait(*pods, of=None, **known):
    of = of or job()
    given = snapshot(of, child(of), *pods, **known)
    return pending_reason(given, given.run(0))


def stuck_pod(index, **more):
    made = pod(index, "Pending", **{"waiting": "ContainerCreating", **more})
    return msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, node_name="node-1"))


def unscheduled(message, reason="Unschedulable"):
    return [{"type": "PodScheduled", "status": "False", "reason": reason, "message": message}]


def test_a_job_whose_pods_run_or_have_ended_well_waits_for_nothing():
    assert wait(pod(0), pod(1)) is None
    assert wait(pod(0, "Succeeded"), pod(1)) is None


@pytest.mark.parametrize(
    ("late", "reason", "message"),
    [
        (
            {"conditions": unscheduled("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")},
            Reason.INSUFFICIENT_RESOURCES,
            (
                "Worker 1 fits on no node: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu. "
                "Lower its requests, or free capacity."
            ),
        ),
        (
            {"conditions": unscheduled('persistentvolumeclaim "data" not found')},
            Reason.VOLUME_UNAVAILABLE,
            "Worker 1 needs PVC data, which does not exist: create it.",
        ),
        (
            {"conditions": unscheduled('0/1 nodes are available: persistentvolumeclaim "data" is being deleted.')},
            Reason.VOLUME_UNAVAILABLE,
            "Worker 1 needs PVC data, which is being deleted: create it again when it is gone.",
        ),
        (
            {"conditions": unscheduled("1 node(s) didn't match Pod's node affinity/selector.")},
            Reason.NO_MATCHING_NODE,
            "Worker 1 matches no node: 1 node(s) didn't match Pod's node affinity/selector.",
        ),
        (
            {"conditions": unscheduled("1 Insufficient cpu, 1 node(s) had untolerated taint {a}")},
            Reason.INSUFFICIENT_RESOURCES,
            (
                "Worker 1 fits on no node: 1 Insufficient cpu, 1 node(s) had untolerated taint {a}. "
                "Lower its requests, or free capacity."
            ),
        ),
        (
            {"waiting": "Unsupported", "said": "spec.hostPID: there is no other process to see."},
            Reason.UNSUPPORTED,
            "Worker 1 cannot run on its node: unsupported fields: spec.hostPID: there is no other process to see.",
        ),
        (
            {
                "conditions": unscheduled(
                    "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
                )
            },
            Reason.VOLUME_UNAVAILABLE,
            "Worker 1 waits for a volume: 0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
        ),
        (
            {"conditions": unscheduled("Scheduling is blocked due to non-empty gates", "SchedulingGated")},
            Reason.SCHEDULING_GATED,
            "Worker 1 has a scheduling gate and starts when the gate is removed.",
        ),
        (
            {"waiting": "ImagePullBackOff", "said": 'Back-off pulling "trainer:9"'},
            Reason.IMAGE_PULL_FAILED,
            'Worker 1 cannot pull its image: Back-off pulling "trainer:9".',
        ),
        (
            {"waiting": "CreateContainerConfigError", "said": 'secret "token" not found'},
            Reason.CONFIG_MISSING,
            'Worker 1 refers to something that is missing: CreateContainerConfigError: secret "token" not found.',
        ),
        (
            {"waiting": "RunContainerError"},
            Reason.STARTING,
            "Worker 1 does not start: RunContainerError.",
        ),
        (
            {"waiting": "ContainerCreating"},
            Reason.STARTING,
            "1 of 2 pods run; Worker 1 is starting.",
        ),
        (
            {"waiting": "ContainerCreating", "said": "preparing its image: downloaded 12 of 19 large packages"},
            Reason.STARTING,
            "Worker 1 is preparing its image: downloaded 12 of 19 large packages.",
        ),
    ],
)
def test_the_obstacle_of_a_pod_is_told(late, reason, message):
    told = wait(pod(0), pod(1, "Pending", **late))
    assert (told.reason, told.message) == (reason, message)


def test_between_two_tries_to_pull_an_image_nothing_new_is_told():
    """Or every try would be written into the status, for ever."""
    of = job(status=builders.status(builders.attempt(0)))
    tried = pod(1, "Pending", waiting="ErrImagePull", said="manifest unknown")
    pauses = pod(1, "Pending", waiting="ImagePullBackOff", said='Back-off pulling image "trainer:9"')
    first = plan(snapshot(of, child(of), pod(0), tried)).status
    after = plan(snapshot(msgspec.structs.replace(of, status=first), child(of), pod(0), pauses)).status
    assert after == first
    assert wait(pod(0), tried).message == "Worker 1 cannot pull its image: manifest unknown."


@pytest.mark.parametrize(
    ("why", "note", "reason", "message"),
    [
        ("FailedAttachVolume", "Multi-Attach error for volume pv-1", Reason.VOLUME_UNAVAILABLE,
         "Worker 1 cannot mount its volume: Multi-Attach error for volume pv-1."),
        ("FailedMount", 'MountVolume.SetUp failed: configmap "x" not found', Reason.CONFIG_MISSING,
         'Worker 1 refers to something that is missing: MountVolume.SetUp failed: configmap "x" not found.'),
        ("FailedCreatePodSandBox", "no network", Reason.STARTING, "Worker 1 does not start: no network."),
        ("Pulling", 'Pulling image "trainer:1"', Reason.STARTING, "1 of 2 pods run; Worker 1 is starting."),
    ],
)  # fmt: skip
def test_what_keeps_a_pod_from_starting_on_its_node_is_told(why, note, reason, message):
    told = wait(pod(0), stuck_pod(1), pod_event=PodEvent("mnist-worker-0-1-0", why, note))
    assert (told.reason, told.message) == (reason, message)
    assert wait(pod(0), stuck_pod(1), pod_event=PodEvent("another", why, note)).reason == Reason.STARTING


def test_only_a_pod_that_has_a_node_and_says_nothing_for_long_is_asked_about():
    def asked(*pods):
        return first_stuck_pod(pods, NOW)

    assert asked(pod(0), stuck_pod(1)) == stuck_pod(1)
    assert asked(pod(0), stuck_pod(1, metadata={"creationTimestamp": ago(5)})) is None
    assert asked(pod(0), stuck_pod(1, waiting="ErrImagePull")) is None
    assert asked(pod(0), pod(1, "Pending")) is None


def test_a_pod_with_an_obstacle_is_told_before_one_that_only_starts():
    told = wait(pod(0, "Pending", waiting="ContainerCreating"), pod(1, "Pending", waiting="ErrImagePull"))
    assert told.reason == Reason.IMAGE_PULL_FAILED


@pytest.mark.parametrize(
    ("complaint", "reason", "begins"),
    [
        (None, Reason.STARTING, "1 of 2 pods run; Worker 1 is starting."),
        (QUOTA, Reason.QUOTA_EXCEEDED, "The pods exceed the quota of the namespace: Error creating: pods"),
        ("denied by policy", Reason.PODS_REJECTED, "The API server rejects the pods: denied by policy."),
    ],
)
def test_pods_that_are_not_made_are_explained_by_who_should_make_them(complaint, reason, begins):
    told = wait(pod(0), create_failure=complaint)
    assert told.reason == reason
    assert told.message.startswith(begins)


def test_a_quota_is_told_before_what_other_pods_wait_for():
    assert wait(pod(0, "Pending", waiting="ErrImagePull"), create_failure=QUOTA).reason == Reason.QUOTA_EXCEEDED


def test_an_old_complaint_says_nothing_of_pods_that_are_there():
    assert wait(pod(0), pod(1, "Pending"), create_failure=QUOTA).reason == Reason.STARTING


def test_the_newest_pod_of_a_rank_counts_whatever_its_name():
    old = pod(1, "Failed", metadata={"name": "z", "creationTimestamp": ago(9)})
    assert wait(pod(0), pod(1, life=1, metadata={"name": "a", "creationTimestamp": ago(9)}), old) is None


def test_a_pod_that_failed_and_was_not_needed_is_told():
    of = job(roles={"evaluator": {}})
    told = wait(pod(0), pod(1), pod(0, "Failed", role="evaluator"), of=of)
    assert (told.reason, told.message) == (Reason.POD_FAILED, "Evaluator 0 failed; the other pods continue.")


def test_every_role_has_to_run():
    of = job(**CHIEF)
    told = wait(pod(0), pod(1), pod(0, role="chief"), of=of)
    assert told.message == "3 of 4 pods run; Parameter server 0 is starting."


def test_a_pod_that_is_told_to_go_does_not_run_any_more():
    assert wait(pod(0), pod(1, metadata={"deletionTimestamp": ago(0)})).reason == Reason.STARTING


def test_a_long_message_is_cut_and_stays_one_line():
    told = wait(pod(0), pod(1, "Pending", conditions=unscheduled("no\nroom " * 500)))
    assert len(told.message) < 600
    assert "\n" not in told.message


@pytest.mark.parametrize(
    ("message", "first", "last"),
    [
        ("it broke " + "why " * 300 + "do this", "it broke", "do this."),
        ('{"message":"' + "x" * 600 + '"}', '{"message":"xxx', 'xxx"}.'),
    ],
)
def test_both_ends_of_a_long_message_are_kept(message, first, last):
    cut = pod_pending.truncate(message)
    assert cut.startswith(first)
    assert cut.endswith(last)
