import pytest

from skysail.kinds.offload.resource_limits_webhook import HOOKS, default_limits
from skysail.kube.api.resource_validation import is_extended_resource


def pod(*containers: dict, init: tuple[dict, ...] = ()) -> dict:
    return {"spec": {"containers": list(containers), "initContainers": list(init)}}


GPU = {"name": "gpu", "resources": {"requests": {"nvidia.com/gpu": 1, "cpu": "2"}}}


def test_a_requested_gpu_without_a_limit_gets_the_limit():
    assert default_limits("/spec")(pod(GPU), None).patch == (
        {"op": "add", "path": "/spec/containers/0/resources/limits", "value": {"nvidia.com/gpu": 1}},
    )


def test_limits_that_are_there_are_kept():
    container = {"resources": {"requests": {"nvidia.com/gpu": 2}, "limits": {"memory": "1Gi"}}}
    (patch,) = default_limits("/spec")(pod(container), None).patch
    assert patch["value"] == {"memory": "1Gi", "nvidia.com/gpu": 2}


def test_init_containers_and_templates_are_seen_too():
    job = {"spec": {"template": pod({"name": "plain"}, GPU, init=(GPU,))}}
    assert [p["path"] for p in default_limits("/spec/template/spec")(job, None).patch] == [
        "/spec/template/spec/containers/1/resources/limits",
        "/spec/template/spec/initContainers/0/resources/limits",
    ]


@pytest.mark.parametrize(
    "object_",
    [
        {},
        {"spec": None},
        {"spec": {"containers": None}},
        pod({"name": "a"}),
        pod({"resources": None}),
        pod({"resources": {"requests": {"cpu": "1"}}}),
        pod({"resources": {"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 1}}}),
    ],
)
def test_what_needs_no_limit_is_left_alone(object_):
    admission_response = default_limits("/spec")(object_, None)
    assert admission_response.patch == ()
    assert admission_response.denied is None


def test_admitting_twice_changes_nothing_more():
    first = pod(GPU)
    (patch,) = default_limits("/spec")(first, None).patch
    first["spec"]["containers"][0] = {**GPU, "resources": {**GPU["resources"], "limits": patch["value"]}}
    assert default_limits("/spec")(first, None).patch == ()


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("nvidia.com/gpu", True),
        ("amd.com/gpu", True),
        ("cpu", False),
        ("hugepages-2Mi", False),
        ("requests.kubernetes.io/x", False),
        ("kubernetes.io/batch-cpu", False),
    ],
)
def test_extended_resources_are_those_with_a_foreign_domain(name, want):
    assert is_extended_resource(name) is want


def test_every_hook_asks_only_for_objects_that_lack_a_limit():
    assert {hook.name for hook in HOOKS} == {"pods", "templates", "cronjobs"}
    assert all(hook.match_conditions for hook in HOOKS)


def amounts(request: int, limit: int) -> dict:
    return {"name": "c", "resources": {"requests": {"nvidia.com/gpu": request}, "limits": {"nvidia.com/gpu": limit}}}


def test_a_limit_that_followed_its_request_goes_on_following_it():
    (patch,) = default_limits("/spec")(pod(amounts(2, 1)), pod(amounts(1, 1))).patch
    assert patch["value"] == {"nvidia.com/gpu": 2}


def test_a_limit_that_the_user_changed_is_left_to_the_server():
    assert default_limits("/spec")(pod(amounts(2, 3)), pod(amounts(1, 1))).patch == ()
    assert default_limits("/spec")(pod(amounts(2, 1)), None).patch == ()
