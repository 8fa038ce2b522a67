import pytest

from skysail.app.cloud_nodes import with_default_gpu
from skysail.claims.requirements.cloud_requirements import CloudRequirements
from skysail.cloud.account import GpuRequest


@pytest.mark.parametrize(
    ("requirements", "want"),
    [
        (CloudRequirements(gpus=GpuRequest("", 2)), GpuRequest("T4", 2)),
        (CloudRequirements(gpus=GpuRequest("H100")), GpuRequest("H100")),
        (CloudRequirements(gpus=GpuRequest(""), is_cheapest=True), GpuRequest("")),
        (CloudRequirements(), None),
    ],
)
def test_default_gpu_type_is_for_pods_that_name_none(requirements, want):
    assert with_default_gpu(requirements, "T4").gpus == want
    assert with_default_gpu(requirements, "").gpus == requirements.gpus
