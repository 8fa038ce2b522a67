from msgspec.structs import replace

from skysail.claims.types import CloudInstance, CloudInstanceSpec, CloudInstanceStatus, OwnerRef
from skysail.core.actions import PatchMetadata
from skysail.kinds.offload.plan import pod_annotations
from skysail.kinds.offload.plan.snapshot import CloudPodSnapshot
from skysail.kube.api.objects import Meta, Object

POD = Object(metadata=Meta(name="p", namespace="n", uid="u"))
WANT = {
    "modal-operator.io/function-id": "sb-2",
    "modal-operator.io/app-id": "ap-1",
    "modal-operator.io/log-url": "https://modal.com/apps/ap-1",
}


def claim(launch: int, instance: str) -> CloudInstance:
    owner = OwnerRef(kind="Pod", name="p", uid="u", namespace="n")
    status = CloudInstanceStatus(state="Running", instance_id=instance, app_id="ap-1" if instance else "")
    spec = CloudInstanceSpec(provider="modal", owner=owner, launch=launch)
    return CloudInstance(metadata=Meta(name=f"u-{launch}"), spec=spec, status=status)


def test_newest_launch_is_written():
    plan = pod_annotations.plan(CloudPodSnapshot(object=POD, claims=(claim(1, "sb-2"), claim(0, "sb-1"))))
    (patch,) = plan.actions
    assert isinstance(patch, PatchMetadata)
    assert patch.annotations == WANT


def test_nothing_is_written_twice():
    written = replace(POD, metadata=replace(POD.metadata, annotations=WANT))
    assert pod_annotations.plan(CloudPodSnapshot(object=written, claims=(claim(1, "sb-2"),))).actions == ()


def test_without_an_instance_nothing_is_written():
    assert pod_annotations.plan(CloudPodSnapshot(object=POD, claims=(claim(0, ""),))).actions == ()


def test_deadline_of_an_app_is_written():
    """Before the deadline, a new pod takes the App over."""
    known = claim(1, "web.ap-1.c")
    for url, expected in (("", None), ("https://app.modal.run", "2026-11-19T12:00:00Z")):
        status = replace(known.status, url=url, deadline_time="2026-11-19T12:00:00Z")
        (patch,) = pod_annotations.plan(CloudPodSnapshot(object=POD, claims=(replace(known, status=status),))).actions
        assert isinstance(patch, PatchMetadata)
        assert patch.annotations.get("skysail.dev/deadline") == expected


def test_deadline_of_a_server_of_a_model_is_written_at_each_cloud():
    """Only Modal has ids to write. Other pods need no deadline."""
    known = claim(1, "pod-1")
    known = replace(known, status=replace(known.status, deadline_time="2026-11-19T12:00:00Z"))
    pod = replace(POD, metadata=replace(POD.metadata, annotations={"skysail.dev/period": "0"}))
    (patch,) = pod_annotations.plan(CloudPodSnapshot(object=pod, claims=(known,), is_at_modal=False)).actions
    assert isinstance(patch, PatchMetadata)
    assert patch.annotations == {"skysail.dev/deadline": "2026-11-19T12:00:00Z"}
    assert pod_annotations.plan(CloudPodSnapshot(object=POD, claims=(known,), is_at_modal=False)).actions == ()
