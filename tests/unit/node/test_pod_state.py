from __future__ import annotations

from skysail.node.pod_state import PodState
from skysail.node.sync.planner import plan
from tests.unit.node.pods import ended, pod, run, running, snapshot


def test_pod_state_image_pull_failure_is_retried_with_backoff_and_reported():
    pod_state, told = PodState(pod(), {}, "", began=0.0), []
    for now in (100.0, 200.0, 300.0):
        pod_state.back_off("main", "ErrImagePull", "No such image.", now)
        told.append((pod_state.waiting["main"].reason, pod_state.waiting["main"].retry_at - now))
    assert told == [("ErrImagePull", 5.0), ("ImagePullBackOff", 10.0), ("ImagePullBackOff", 20.0)]
    pod_state.clear_back_off("main")
    pod_state.back_off("main", "ErrImagePull", "No such image.", 400.0)
    assert pod_state.waiting["main"].reason == "ErrImagePull"


def test_a_crash_loop_does_not_fill_the_memory_and_keeps_its_pace():
    of, ends = pod(restartPolicy="Always"), {run("main", number): ended(1, ago=1.0) for number in range(30)}
    pod_state = PodState(of, {run("main", 3): running(), run("other", 0): ended(0)}, "", began=0.0)
    for known, end in ends.items():
        if known.number != 3:
            pod_state.ended(known, end)
    kept = [("main", number) for number in (3, *range(22, 30))]
    assert sorted((known.container, known.number) for known in pod_state.runs) == [*kept, ("other", 0)]
    del pod_state.runs[run("main", 3)]
    assert plan(snapshot(of, pod_state.runs)).requeue_after == plan(snapshot(of, ends)).requeue_after == 299.0
    pod_state.ended(run("main", 30), ended(1, lasted=700.0))
    pod_state.ended(run("main", 31), ended(1))
    pod_state.ended(run("main", 32), ended(1))
    assert plan(snapshot(of, pod_state.runs)).requeue_after == 10.0
