import pytest

from skysail.cloud.account import GpuRequest, Timings
from skysail.cloud.errors import Rejected, Unsupported
from skysail.cloud.modal import launch
from skysail.cloud.modal.launch import SandboxArguments, VolumeMount
from skysail.cloud.modal.prices import PriceTable
from skysail.cloud.provider import CloudVolume, HostPath, Mount, PersistentDisk, ResourceLimits, Volume
from tests.unit.cloud.modal.specs import launch_spec


def arguments(**fields) -> SandboxArguments:
    return launch.sandbox_arguments(launch_spec(**fields), PriceTable(), Timings(), now=1000.0)


def test_arguments_have_the_names_of_the_claim():
    found = arguments(container={"args": ("x",), "env": (("A", "1"),), "working_dir": "/app"})
    assert (found.app, found.name) == ("op-0b7e5a70-default", "claim-1")
    assert found.argv == ("sh", "-c", "true", "x")
    assert found.env == {"A": "1", "SKYSAIL_CLAIM": "claim-1"}
    assert (found.workdir, found.timeout, found.gpu) == ("/app", 600, "")


def test_a_kubernetes_core_is_half_a_core_of_modal():
    found = arguments(container={"limits": ResourceLimits(cpu=4.0, memory=3 * 2**30 + 1)})
    assert (found.cores, found.memory_mib) == ((2.0, 2.0), (3073, 3073))


def test_few_cores_are_rounded_up_to_the_least_that_modal_has():
    assert arguments(container={"limits": ResourceLimits(cpu=0.1)}).cores == (0.125, 0.125)


def test_a_sandbox_without_limits_has_upper_bounds_that_its_price_includes():
    found = arguments()
    assert (found.cores, found.memory_mib) == ((0.125, 4.0), (128, 16384))
    assert found.usd_per_hour == pytest.approx(4 * 0.1419 + 16 * 0.024)


def test_requests_are_the_upper_bounds_where_no_limits_are_given():
    requests = ResourceLimits(cpu=4.0, memory=2**30)
    found = arguments(container={"requests": requests, "limits": ResourceLimits(memory=2 * 2**30)})
    assert (found.cores, found.memory_mib) == ((2.0, 2.0), (2048, 2048))


def test_the_timeout_is_always_set_and_never_zero():
    assert arguments(max_lifetime=0.3).timeout == 1
    assert arguments(max_lifetime=90.5).timeout == 91


@pytest.mark.parametrize(
    ("gpus", "want"),
    [
        (GpuRequest("A100"), "A100-40GB:1"),
        (GpuRequest("t4", 1), "T4:1"),
        (GpuRequest("H100", 8), "H100:8"),
        (GpuRequest("H100!", 2), "H100!:2"),
        (GpuRequest("A10G"), "A10:1"),
        (GpuRequest(""), "T4:1"),
    ],
)
def test_gpu_forms(gpus, want):
    assert arguments(gpus=gpus).gpu == want


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"gpus": GpuRequest("GTX-1")}, "UnknownGpu"),
        ({"gpus": GpuRequest("A10", 5)}, "TooManyGpus"),
        ({"max_lifetime": 0.0}, "InvalidDeadline"),
        ({"max_lifetime": 86_401.0}, "InvalidDeadline"),
        ({"region": "atlantis-1"}, "UnknownRegion"),
        ({"cloud_type": "SECURE"}, "UnknownCloudType"),
        ({"pod": {"uses_host_network": True}}, "UnsupportedNetwork"),
        ({"pod": {"volumes": (Volume("d", PersistentDisk("disk-1")),)}}, "UnsupportedVolume"),
        ({"pod": {"volumes": (Volume("h", HostPath("/etc")),)}}, "UnsupportedVolume"),
        ({"container": {"command": ()}}, "EntrypointUnknown"),
        ({"container": {"command": ("x" * 70_000,)}}, "CommandTooLong"),
        ({"options": (("modal-volumes", "data"),)}, "InvalidVolume"),
        ({"gpus": GpuRequest("T4"), "max_usd_per_hour": 0.5}, "PriceAboveCap"),
    ],
)
def test_arguments_that_modal_cannot_run_are_rejected_with_a_reason(fields, reason):
    with pytest.raises(Rejected) as rejected:
        arguments(**fields)
    assert rejected.value.reason == reason


def test_a_gang_is_no_sandbox():
    with pytest.raises(Unsupported):
        arguments(replicas=2)


def test_cpu_and_memory_count_against_the_cap():
    small, limits = ({"limits": ResourceLimits(cpu=cpu, memory=2**30)} for cpu in (2.0, 16.0))
    arguments(gpus=GpuRequest("T4"), max_usd_per_hour=0.76, container=small)
    with pytest.raises(Rejected, match="CPU and memory"):
        arguments(gpus=GpuRequest("T4"), max_usd_per_hour=0.76, container=limits)


def test_volumes_and_region_of_options():
    spec = launch_spec(options=(("modal-region", "us-east"), ("modal-volumes", "data:/data, models:/models:ro")))
    found = launch.sandbox_arguments(spec, PriceTable(), Timings(), now=0.0, shared_volumes=("models",))
    own = VolumeMount("op-0b7e5a70-default.data", "/data")
    assert found.volumes == (own, VolumeMount("models", "/models", is_read_only=True, is_shared=True))
    assert found.region == "us-east"


def test_namespaces_never_share_a_volume_by_accident():
    names = {
        arguments(pod={"namespace": space}, options=(("modal-volumes", "data:/data"),)).volumes[0].name
        for space in ("a", "b", "a" * 63)
    }
    assert len(names) == 3
    assert all(len(name) <= 64 for name in names)


def test_the_region_of_the_offer_wins_over_the_option():
    assert arguments(region="eu", options=(("modal-region", "us-east"),)).region == "eu"


def test_a_volume_of_the_cloud_is_a_modal_volume_of_its_namespace():
    pods = [{"namespace": space, "volumes": (Volume("c", CloudVolume("uid-1")),)} for space in ("a", "b")]
    mounts = {"mounts": (Mount(volume="c", path="/checkpoints"),)}
    first, second = (arguments(pod=pod, container=mounts).volumes[0] for pod in pods)
    assert (first.path, first.is_read_only) == ("/checkpoints", False)
    assert "uid-1" in first.name
    assert first.name != second.name
