"""What a kubelet decides, rule by rule."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.cloud.provider import EVICTED, NO_CAPACITY, Ended, Running
from skysail.node.sync import status as pod_status
from skysail.node.sync.planner import CreateSandbox, DeletePod, RemoveSandbox, ShowInstance, Start, Stop, plan
from skysail.node.sync.snapshot import ProbeState, StartBackoff
from skysail.node.sync.unsupported_fields import UnsupportedFields
from tests.unit.node.pods import NOW, container, ended, pod, run, running, snapshot, written

DELETED = {"deletionTimestamp": "2026-11-15T12:00:05Z", "deletionGracePeriodSeconds": 5}
SIDECAR = container("side", restartPolicy="Always")
INIT = container("init")


def conditions(status: dict) -> dict[str, str]:
    return {row["type"]: row["status"] for row in status["conditions"]}


def state(status: dict, name: str = "main") -> dict:
    rows = (*status["containerStatuses"], *status["initContainerStatuses"])
    return next(row["state"] for row in rows if row["name"] == name)


def test_the_place_comes_first():
    made = plan(snapshot(pod(), address=None))
    assert made.steps == (CreateSandbox(),)
    assert made.is_moving


def test_a_place_that_could_not_be_made_is_tried_again_when_its_time_has_come():
    held = {"": StartBackoff("CreateContainerConfigError", "Secret s does not exist.", NOW + 5)}
    made = plan(snapshot(pod(), address=None, waiting=held))
    assert made.steps == ()
    assert made.requeue_after == 5
    assert state(made.status)["waiting"]["reason"] == "CreateContainerConfigError"


@pytest.mark.parametrize(
    ("policy", "runs", "steps"),
    [
        ("Never", {}, (Start("main", 0),)),
        ("Never", {run(): running()}, ()),
        ("Always", {run(): ended(0)}, (Start("main", 1),)),
        ("Always", {run(): ended(1)}, (Start("main", 1),)),
        ("OnFailure", {run(): ended(1)}, (Start("main", 1),)),
        ("OnFailure", {run(): ended(0)}, (RemoveSandbox(),)),
        ("Never", {run(): ended(1)}, (RemoveSandbox(),)),
    ],
)
def test_who_runs_again(policy, runs, steps):
    assert plan(snapshot(pod(restartPolicy=policy), runs)).steps == steps


@pytest.mark.parametrize(
    ("short_runs", "pause"), [(1, None), (2, 10.0), (3, 20.0), (4, 40.0), (6, 160.0), (7, 300.0), (20, 300.0)]
)
def test_a_container_that_ends_soon_is_started_later_each_time(short_runs, pause):
    runs = {run("main", number): ended(1) for number in range(short_runs)}
    made = plan(snapshot(pod(restartPolicy="Always"), runs))
    assert made.requeue_after == pause
    assert made.steps == (() if pause else (Start("main", short_runs),))
    if pause:
        assert state(made.status)["waiting"]["reason"] == "CrashLoopBackOff"


def test_plan_handler_of_an_app_is_missing_starts_no_further_run():
    """Each launch of an App costs money, and an import of the same files fails again."""
    end = Ended(code=128, reason="HandlerNotFound", message="Module app has no function b.", ended=NOW - 3600)
    before = pod(restartPolicy="Always")
    made = plan(snapshot(before, {run(): end}))
    assert (made.steps, made.requeue_after) == ((), None)
    assert state(made.status)["waiting"]["reason"] == "HandlerNotFound"
    (row,) = made.status["containerStatuses"]
    assert row["lastState"]["terminated"]["message"] == "Module app has no function b."
    # A restarted node knows the written status alone.
    assert plan(snapshot(written(before, made.status))).steps == ()


def test_ten_healthy_minutes_end_the_back_off():
    runs = {run("main", 0): ended(1), run("main", 1): ended(1), run("main", 2): ended(1, lasted=600)}
    assert plan(snapshot(pod(restartPolicy="Always"), runs)).steps == (Start("main", 3),)


def test_a_start_under_way_is_not_asked_for_again():
    made = plan(snapshot(pod(), starting=frozenset({run()})))
    assert made.steps == ()
    assert state(made.status)["waiting"]["reason"] == "ContainerCreating"


def test_plan_image_in_preparation_is_shown_in_the_waiting_state():
    made = plan(
        snapshot(pod(), starting=frozenset({run()}), image_progress={"main": "downloaded 1 of 2 large packages"})
    )
    message = "preparing its image: downloaded 1 of 2 large packages"
    assert state(made.status) == {"waiting": {"reason": "ContainerCreating", "message": message}}


def test_plan_init_containers_wait_with_the_reason_of_other_kubelets():
    two = [{"name": name, "image": "x"} for name in ("first", "second")]
    made = plan(snapshot(pod(initContainers=two)))
    states = [row["state"]["waiting"]["reason"] for row in made.status["initContainerStatuses"]]
    assert states == ["PodInitializing", "PodInitializing"]


def test_a_refused_start_waits_and_says_why():
    held = {"main": StartBackoff("ErrImagePull", "skysail image add x", NOW + 7)}
    made = plan(snapshot(pod(), waiting=held))
    assert (made.steps, made.requeue_after) == ((), 7)
    assert state(made.status) == {"waiting": {"reason": "ErrImagePull", "message": "skysail image add x"}}
    assert plan(snapshot(pod(), waiting=held, now=NOW + 7)).steps == (Start("main", 0),)


@pytest.mark.parametrize(
    ("runs", "steps"),
    [
        ({}, (Start("init", 0),)),
        ({run("init"): running()}, ()),
        ({run("init"): ended(0)}, (Start("main", 0),)),
    ],
)
def test_init_containers_come_first(runs, steps):
    made = plan(snapshot(pod(initContainers=[INIT]), runs))
    assert made.steps == steps
    assert conditions(made.status)["Initialized"] == ("True" if steps == (Start("main", 0),) else "False")


@pytest.mark.parametrize(("policy", "steps"), [("Never", (RemoveSandbox(),)), ("Always", (Start("init", 1),))])
def test_an_init_container_that_failed(policy, steps):
    made = plan(snapshot(pod(initContainers=[INIT], restartPolicy=policy), {run("init"): ended(3)}))
    assert made.steps == steps
    assert made.status["phase"] == ("Failed" if policy == "Never" else "Pending")
    assert made.status["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}


def test_a_pod_is_not_younger_than_its_containers():
    made = plan(snapshot(pod(initContainers=[INIT]), {run("init"): ended(ago=5, lasted=2), run(): running(since=3)}))
    assert made.status["startTime"] == made.status["initContainerStatuses"][0]["state"]["terminated"]["startedAt"]
    assert plan(snapshot(pod(), {})).status["startTime"] == "2026-11-15T12:00:00Z"


def test_a_sidecar_has_to_start_before_what_follows():
    of = pod(initContainers=[SIDECAR, INIT])
    assert plan(snapshot(of)).steps == (Start("side", 0),)
    unstarted = {run("side"): ProbeState(started=False)}
    assert plan(snapshot(of, {run("side"): running()}, health=unstarted)).steps == ()
    assert plan(snapshot(of, {run("side"): running()})).steps == (Start("init", 0),)


def test_a_sidecar_comes_back_even_where_nothing_else_does():
    of = pod(initContainers=[SIDECAR], restartPolicy="Never")
    made = plan(snapshot(of, {run("side"): ended(0), run(): running()}))
    assert made.steps == (Start("side", 1),)


def test_sidecars_end_last_and_in_reverse():
    of = pod(initContainers=[SIDECAR, container("late", restartPolicy="Always")], metadata=DELETED)
    live = {run("side"): running(), run("late"): running(), run(): running()}
    assert [step.run.container for step in plan(snapshot(of, live)).steps] == ["main"]
    live[run()] = ended(0)
    assert [step.run.container for step in plan(snapshot(of, live)).steps] == ["late"]
    live[run("late")] = ended(143)
    assert [step.run.container for step in plan(snapshot(of, live)).steps] == ["side"]


def test_the_work_is_over_when_the_sidecars_have_ended_too():
    of = pod(initContainers=[SIDECAR], restartPolicy="Never")
    made = plan(snapshot(of, {run("side"): running(), run(): ended(0)}))
    assert [type(step) for step in made.steps] == [Stop]
    assert made.status["phase"] == "Running"
    done = plan(snapshot(of, {run("side"): ended(143), run(): ended(0)}))
    assert (done.steps, done.status["phase"]) == ((RemoveSandbox(),), "Succeeded")


def test_deletion_asks_once_and_again_only_with_less_time():
    of = pod(metadata=DELETED)
    assert plan(snapshot(of, {run(): running()})).steps == (Stop(run(), 5.0, "The pod is being deleted."),)
    assert plan(snapshot(of, {run(): running()}, stops={run(): NOW + 5}, now=NOW + 1)).steps == ()
    hurried = pod(metadata={**DELETED, "deletionGracePeriodSeconds": 1})
    assert plan(snapshot(hurried, {run(): running()}, stops={run(): NOW + 5})).steps[0].grace == 1


@pytest.mark.parametrize(
    ("runs", "phase"), [({run(): ended(0)}, "Succeeded"), ({run(): ended(143)}, "Failed"), ({}, "Failed")]
)
def test_the_last_word_before_a_pod_is_let_go(runs, phase):
    made = plan(snapshot(pod(metadata=DELETED), runs))
    assert made.steps == (RemoveSandbox(), DeletePod())
    assert made.status["phase"] == phase
    assert conditions(made.status)["Ready"] == "False"


def test_a_pod_deleted_while_starting_is_stopped_first():
    made = plan(snapshot(pod(metadata=DELETED), starting=frozenset({run()})))
    assert [step.run for step in made.steps] == [run()]


def test_a_pod_that_only_waits_for_finalizers_is_not_deleted_again():
    of = pod(metadata={**DELETED, "deletionGracePeriodSeconds": 0}, status={"phase": "Failed"})
    assert plan(snapshot(of, address=None)).steps == ()


def test_the_deadline_ends_a_pod_and_is_named_as_the_reason():
    of = pod(activeDeadlineSeconds=10, restartPolicy="Never", status={"startTime": "2026-11-15T12:00:00Z"})
    assert plan(snapshot(of, {run(): running()})).requeue_after == 10
    late = snapshot(of, {run(): running()}, now=NOW + 10)
    assert [type(step) for step in plan(late).steps] == [Stop]
    over = plan(snapshot(of, {run(): ended(143, ago=-11)}, now=NOW + 12))
    assert (over.status["phase"], over.status["reason"]) == ("Failed", "DeadlineExceeded")


def test_deadline_that_ended_a_pod_without_written_status_is_named():
    of = pod(activeDeadlineSeconds=2, restartPolicy="Never")
    over = plan(snapshot(of, {run(): ended(143, ago=-2)}, now=NOW + 3, active_seconds=4.0))
    assert (over.status["phase"], over.status["reason"]) == ("Failed", "DeadlineExceeded")


def test_first_status_starts_when_the_pod_came_to_the_node():
    shown = plan(snapshot(pod(), now=NOW + 3, active_seconds=3.0)).status
    assert shown["startTime"] == "2026-11-15T12:00:00Z"


def test_work_that_was_done_in_time_is_not_late_because_somebody_looked_late():
    of = pod(activeDeadlineSeconds=10, restartPolicy="Never", status={"startTime": "2026-11-15T12:00:00Z"})
    assert plan(snapshot(of, {run(): ended(0, ago=-5)}, now=NOW + 60)).status["phase"] == "Succeeded"


def test_an_unhealthy_run_is_ended_and_comes_back():
    of = pod(restartPolicy="Always")
    sick = {run(): ProbeState(failure="Liveness probe failed: gone")}
    made = plan(snapshot(of, {run(): running()}, health=sick))
    assert [(step.run, step.grace) for step in made.steps] == [(run(), 30.0)]


@pytest.mark.parametrize(
    ("health", "started", "ready"),
    [
        (ProbeState(), True, True),
        (ProbeState(started=False), False, False),
        (ProbeState(ready=False), True, False),
    ],
)
def test_probes_decide_what_is_started_and_ready(health, started, ready):
    row = plan(snapshot(pod(), {run(): running()}, health={run(): health})).status["containerStatuses"][0]
    assert (row["started"], row["ready"]) == (started, ready)


def test_a_closed_readiness_gate_keeps_the_pod_unready():
    of = pod(readinessGates=[{"conditionType": "example.com/gate"}])
    shown = conditions(plan(snapshot(of, {run(): running()})).status)
    assert (shown["ContainersReady"], shown["Ready"]) == ("True", "False")


def test_what_a_node_cannot_carry_is_said_and_not_run():
    made = plan(
        snapshot(
            pod(),
            address=None,
            unsupported=UnsupportedFields(("spec.volumes[0] (v): this node does not support this type of volume.",)),
        )
    )
    assert made.steps == ()
    assert "spec.volumes[0]" in state(made.status)["waiting"]["message"]


def test_a_run_that_was_told_to_have_ended_is_ended_when_it_shows_up_again():
    status = plan(snapshot(pod(restartPolicy="OnFailure"), {run(): ended(137)})).status
    told = written(pod(restartPolicy="OnFailure"), {**status, "phase": "Running"})
    made = plan(snapshot(told, {run(): running()}))
    assert made.steps[0] == Stop(run(), 0.0, "It is not the latest run of its container.")
    assert Start("main", 1) in made.steps


def test_init_containers_run_again_where_the_place_was_lost():
    of = pod(initContainers=[INIT], restartPolicy="Always")
    told = written(of, plan(snapshot(of, {run("init"): ended(0), run(): running()})).status)
    lost = {run(): ended(137, reason="Lost")}
    assert plan(snapshot(told, lost, lost_runs=frozenset({run("init"), run()}))).steps == (Start("init", 1),)
    assert plan(snapshot(told, lost)).steps == (Start("main", 1),)


def test_where_nothing_may_run_twice_a_lost_place_is_the_end():
    """Also for what was not started yet: it would not find what the others left."""
    of = pod(initContainers=[INIT], restartPolicy="Never")
    lost = plan(snapshot(of, {run("init"): ended(0)}, address=None, lost_runs=frozenset({run("init")})))
    assert (lost.steps, lost.status["phase"], lost.status["reason"]) == ((), "Failed", "Lost")
    told = {run("init"): ended(0), run(): ended(0)}
    assert plan(snapshot(of, told, address=None, lost_runs=frozenset(told))).status["phase"] == "Succeeded"


def disrupted(status):
    return [(row["reason"], row["message"]) for row in status["conditions"] if row["type"] == "DisruptionTarget"]


def test_a_pod_that_ended_with_its_node_was_disrupted_and_did_nothing_wrong():
    of = pod(container("main"), container("side"), restartPolicy="Never")
    gone = ended(137, reason="Lost", message="The node was stopped.")
    lost = plan(snapshot(of, {run(): gone, run("side"): gone})).status
    assert (lost["phase"], lost["reason"]) == ("Failed", "Lost")
    assert disrupted(lost) == [("TerminationByKubelet", "The node was stopped.")]
    failed = plan(snapshot(of, {run(): ended(1), run("side"): gone})).status
    assert (failed["phase"], failed["reason"], disrupted(failed)) == ("Failed", None, [])
    done = pod(initContainers=[{**INIT, "restartPolicy": "Always"}], restartPolicy="Never")
    well = plan(snapshot(done, {run("init"): gone, run(): ended(0)})).status
    assert (well["phase"], well["reason"], disrupted(well)) == ("Succeeded", None, [])


def test_the_condition_of_somebody_else_stays():
    foreign = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-15T11:00:00Z"}
    shown = plan(snapshot(pod(status={"conditions": [foreign]}))).status
    assert foreign in shown["conditions"]


def test_a_written_status_is_not_written_again():
    of = pod(restartPolicy="Always")
    moments = [
        snapshot(of, {run(): running()}),
        snapshot(of, {run(): ended(1), run("main", 1): ended(2)}),
        snapshot(of),
    ]
    for moment in moments:
        status = plan(moment).status
        assert pod_status.differs(of, status)
        stored = written(of, status)
        again = msgspec.structs.replace(moment, pod=stored, now=NOW + 1)
        assert not pod_status.differs(stored, plan(again).status)


def test_a_status_read_back_tells_the_same_history():
    of = pod(restartPolicy="Always")
    runs = {run("main", 0): ended(1), run("main", 1): ended(2)}
    before = plan(snapshot(of, runs))
    after = plan(snapshot(written(of, before.status)))
    assert (after.steps, after.requeue_after) == (before.steps, before.requeue_after)


states = st.one_of(
    st.builds(Running, started=st.floats(NOW - 1000, NOW)),
    st.builds(
        Ended,
        code=st.sampled_from([0, 1, 137]),
        reason=st.just("Error"),
        started=st.floats(NOW - 1000, NOW - 500),
        ended=st.floats(NOW - 500, NOW),
    ),
)
names = st.sampled_from(["main", "other", "init", "side"])
runs_of_a_pod = st.dictionaries(st.builds(run, names, st.integers(0, 3)), states, max_size=6)
phases = st.sampled_from(["Pending", "Running", "Succeeded", "Failed"])
pods = st.builds(
    lambda policy, deleted, phase: pod(
        container("main"),
        container("other"),
        initContainers=[INIT, SIDECAR],
        restartPolicy=policy,
        metadata=DELETED if deleted else {},
        status={"phase": phase},
    ),
    st.sampled_from(["Always", "OnFailure", "Never"]),
    st.booleans(),
    phases,
)
snapshots = st.builds(snapshot, pods, runs_of_a_pod, address=st.sampled_from(["", "10.244.0.2"]))


@given(snapshots)
def test_a_plan_is_a_function_of_its_snapshot(moment):
    assert plan(moment) == plan(moment)


@given(snapshots)
def test_a_pod_never_goes_back(moment):
    rank = {"Pending": 0, "Running": 1, "Succeeded": 2, "Failed": 2}
    before, status = moment.pod.status.phase, plan(moment).status
    if moment.pod.is_finished:
        assert status is None
    else:
        assert rank[status["phase"]] >= rank[before]


@given(snapshots)
def test_no_pod_is_over_while_something_runs(moment):
    status = plan(moment).status
    if status is not None and status["phase"] in {"Succeeded", "Failed"}:
        assert not any(isinstance(state, Running) for state in moment.runs.values())


@given(snapshots)
def test_no_place_is_taken_away_from_under_a_run(moment):
    steps = plan(moment).steps
    if RemoveSandbox() in steps or DeletePod() in steps:
        assert not any(isinstance(state, Running) for state in moment.runs.values())


@given(snapshots)
def test_nothing_is_started_in_a_pod_that_has_to_end(moment):
    starts = [step for step in plan(moment).steps if isinstance(step, (Start, CreateSandbox))]
    assert not starts or not (moment.pod.is_finished or moment.pod.metadata.is_deleting)


def test_a_pod_that_was_evicted_has_failed_and_says_why():
    why = 'Usage of EmptyDir volume "v" exceeds the limit "1".'
    of = pod(container("main"), container("side"), restartPolicy="Always")
    out = {run(): ended(137, reason=EVICTED, message=why)}
    first = plan(snapshot(of, {**out, run("side"): running()}))
    assert first.steps == (Stop(run("side"), 0.0, why),)
    last = plan(snapshot(of, {**out, run("side"): ended(137)}))
    assert last.steps == (RemoveSandbox(),)
    assert (last.status["phase"], last.status["reason"], last.status["message"]) == ("Failed", "Evicted", why)
    disrupted = [row for row in last.status["conditions"] if row["type"] == "DisruptionTarget"]
    assert [(row["status"], row["reason"], row["message"]) for row in disrupted] == [
        ("True", "TerminationByKubelet", why)
    ]


@pytest.mark.parametrize(
    ("burden", "reason"),
    [
        (UnsupportedFields((), ("spec.dnsConfig: x.",)), "FieldsIgnored"),
        (UnsupportedFields(("spec.hostPID: y.",), ("z.",)), "Unsupported"),
    ],
)
def test_what_is_not_carried_is_a_condition(burden, reason):
    shown = plan(snapshot(pod(), {}, unsupported=burden)).status
    (told,) = [row for row in shown["conditions"] if row["type"] == "skysail.dev/Supported"]
    assert (told["status"], told["reason"]) == ("False", reason)
    assert told["message"] == " ".join(burden.rejected + burden.ignored)
    stored = written(pod(), shown)
    assert not pod_status.differs(stored, plan(snapshot(stored, {}, unsupported=burden)).status)


def test_a_probe_that_names_a_grace_is_obeyed():
    of = pod(terminationGracePeriodSeconds=30)
    sick = ProbeState(failure="no", grace=3)
    assert plan(snapshot(of, {run(): running()}, health={run(): sick})).steps == (Stop(run(), 3.0, "no"),)


CONTROLLED = {
    "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j", "controller": True}]
}
NEVER_PLACED = Ended(code=128, reason=NO_CAPACITY, message="No candidate of modal can be had now.", ended=NOW)


@pytest.mark.parametrize("policy", ["Never", "OnFailure", "Always"])
def test_pod_with_controller_without_capacity_fails_as_disrupted_whatever_its_restart_policy(policy):
    made = plan(snapshot(pod(metadata=CONTROLLED, restartPolicy=policy), {run(): NEVER_PLACED}))
    assert (made.status["phase"], made.status["reason"]) == ("Failed", "NoCapacity")
    (row,) = [row for row in made.status["conditions"] if row["type"] == "DisruptionTarget"]
    assert (row["status"], row["reason"], row["message"]) == ("True", "NoCapacity", NEVER_PLACED.message)
    assert not any(isinstance(step, Start) for step in made.steps)


def test_pod_without_controller_and_without_capacity_is_not_marked_as_disrupted():
    made = plan(snapshot(pod(restartPolicy="OnFailure"), {run(): NEVER_PLACED}))
    assert made.status["phase"] != "Failed"
    assert all(row["type"] != "DisruptionTarget" for row in made.status["conditions"])


def test_pod_whose_program_names_the_same_reason_is_not_disrupted():
    ran = ended(1, reason=NO_CAPACITY)
    made = plan(snapshot(pod(metadata=CONTROLLED, restartPolicy="Never"), {run(): ran}))
    assert (made.status["phase"], made.status["reason"]) == ("Failed", None)


def test_status_image_unreadable_is_a_condition_until_it_is_read():
    held = {"main": StartBackoff("EntrypointUnknown", "Image x cannot be read: set `command`.", NOW + 5)}
    shown = plan(snapshot(pod(), waiting=held)).status
    (condition,) = [row for row in shown["conditions"] if row["type"] == "skysail.dev/Supported"]
    assert (condition["status"], condition["reason"]) == ("False", "EntrypointUnknown")
    assert condition["message"] == "Image x cannot be read: set `command`."
    stored = written(pod(), shown)
    assert not pod_status.differs(stored, plan(snapshot(stored, waiting=held)).status)
    (condition,) = [
        row for row in plan(snapshot(stored)).status["conditions"] if row["type"] == "skysail.dev/Supported"
    ]
    assert condition["status"] == "True"


@pytest.mark.parametrize(
    ("image_id", "shown", "is_written"),
    [
        ("runpod/abc", {}, True),
        ("runpod/abc", {"runpod.io/pod-id": "abc"}, False),
        ("runpod/abc", {"runpod.io/pod-id": "earlier"}, True),
        ("modal.com/sb-1", {}, False),
    ],
)
def test_pod_at_runpod_shows_the_id_of_its_instance_once(image_id, shown, is_written):
    shown_pod = pod()
    metadata = msgspec.structs.replace(shown_pod.metadata, annotations=shown)
    snap = snapshot(msgspec.structs.replace(shown_pod, metadata=metadata), {run(): Running(NOW, image_id)})
    steps = [step for step in plan(snap).steps if isinstance(step, ShowInstance)]
    assert bool(steps) is is_written
    if is_written:
        assert steps == [ShowInstance({"runpod.io/pod-id": "abc"}, {"runpod.io/pod-id": "abc"})]


@pytest.mark.parametrize(
    ("reason", "has_controller", "age", "is_deleted"),
    [
        (NO_CAPACITY, True, 1801, True),
        (NO_CAPACITY, True, 1700, False),
        (NO_CAPACITY, False, 9999, False),
        ("Error", True, 9999, False),
    ],
)
def test_replaced_pod_without_capacity_is_deleted_after_a_while(reason, has_controller, age, is_deleted):
    from datetime import UTC, datetime

    moment = datetime.fromtimestamp(NOW - age, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
    status = {"phase": "Failed", "reason": reason, "conditions": [{"type": "Ready", "lastTransitionTime": moment}]}
    metadata = {"ownerReferences": [owner]} if has_controller else {}
    planned = plan(snapshot(pod(metadata=metadata, status=status)))
    assert (DeletePod() in planned.steps) is is_deleted
    assert (planned.requeue_after is not None) is (reason == NO_CAPACITY and has_controller and not is_deleted)
