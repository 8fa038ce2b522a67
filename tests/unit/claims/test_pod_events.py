from msgspec.structs import replace

from skysail.claims.pod_events import events_of
from skysail.claims.types import (
    Candidate,
    CloudInstance,
    CloudInstanceSpec,
    CloudInstanceStatus,
    Exit,
    Gpu,
    Launching,
    MemberPod,
    OwnerRef,
    RefusedCandidate,
)
from skysail.kube.api.objects import Meta

AT = "2026-11-18T03:00:00Z"
SOON = "2026-11-18T03:05:00Z"
SPEC = CloudInstanceSpec(
    provider="modal",
    owner=OwnerRef(kind="Pod", name="p", uid="u", namespace="n"),
    gpu=Gpu("T4", 2),
    candidates=(Candidate(gpu_type="T4", usd_per_hour=1.18),),
)
BEFORE = CloudInstance(metadata=Meta(name="u-0"), spec=SPEC, status=CloudInstanceStatus(state="Claimed"))


def reasons(**changes) -> list[tuple[str, bool]]:
    after = replace(BEFORE, status=replace(BEFORE.status, **changes))
    return [(event.reason, event.warning) for event in events_of(BEFORE, after)]


def message(**changes) -> str:
    after = replace(BEFORE, status=replace(BEFORE.status, **changes))
    (event,) = events_of(BEFORE, after)
    return event.message


def test_first_sight_of_a_claim_has_no_events():
    assert events_of(None, replace(BEFORE, status=replace(BEFORE.status, instance_id="sb-1", ready_time=AT))) == ()


def test_each_step_of_a_launch_is_an_event():
    launching = Launching(by="me", nonce="x", at=AT)
    assert message(state="Launching", launching=launching) == "modal is called for 2 T4 from 1.18 USD/h."
    assert message(state="Starting", instance_id="sb-1", usd_per_hour=1.18) == (
        "modal has created instance sb-1 for 1.18 USD/h."
    )
    assert reasons(state="Running", instance_id="sb-1", ready_time=AT) == [("Launched", False), ("Started", False)]


def test_limit_that_shortens_the_lifetime_is_a_warning_of_the_pod():
    launching = replace(
        BEFORE.status,
        state="Launching",
        launching=Launching(by="me", nonce="x", at=AT),
        deadline_time=SOON,
        lifetime_limit="the cap of 0.5 USD",
    )
    _, event = events_of(BEFORE, replace(BEFORE, status=launching))
    assert (event.reason, event.warning) == ("LifetimeLimited", True)
    assert event.message == (
        "The instance ends after 300 seconds, because the cap of 0.5 USD leaves no more: raise it."
    )
    assert len(events_of(BEFORE, replace(BEFORE, status=replace(launching, lifetime_limit="")))) == 1


def test_refused_candidate_is_a_warning():
    refused = RefusedCandidate(candidate=0, reason="NoCapacity", message="No T4 is free.", at=AT)
    assert reasons(refused_candidates=(refused,)) == [("NoCapacity", True)]


def test_end_names_exit_code_and_cost():
    before = replace(BEFORE, status=replace(BEFORE.status, state="Running", instance_id="sb-1", ready_time=AT))
    ended = replace(before.status, state="Terminated", exit=Exit(code=37), usd_total=0.5)
    (event,) = events_of(before, replace(before, status=ended))
    assert event.message == "Instance sb-1 at modal has ended with exit code 37; it cost 0.5000 USD."


def test_end_without_an_instance_is_no_event_of_an_instance():
    assert reasons(state="Terminated") == []


def test_pods_of_a_gang_are_its_ranks_and_not_its_owner():
    ranks = tuple(MemberPod(name=f"p-{rank}", uid=f"u-{rank}", container="c") for rank in range(2))
    assert replace(SPEC, member_pods=ranks).pod_uids == ("u-0", "u-1")
    assert SPEC.pod_uids == ("u",)
