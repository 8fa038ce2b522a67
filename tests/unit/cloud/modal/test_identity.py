import pytest

from skysail.cloud.errors import Rejected
from skysail.cloud.modal import identity
from skysail.cloud.modal.identity import InstanceTags
from tests.unit.cloud.modal.specs import CLUSTER, launch_spec


def test_app_name_is_the_namespace_of_the_cluster():
    assert identity.app_name(CLUSTER, "default") == "op-0b7e5a70-default"


def test_app_name_of_long_namespaces_is_cut_and_stays_unique():
    names = {identity.app_name(CLUSTER, "n" * 62 + end) for end in "ab"}
    assert len(names) == 2
    assert all(len(name) <= 64 and name.startswith(identity.app_prefix(CLUSTER)) for name in names)


def test_two_clusters_and_two_namespaces_never_share_an_app():
    other = "1" + CLUSTER[1:]
    names = {identity.app_name(cluster, space) for cluster in (CLUSTER, other) for space in ("a", "b")}
    assert len(names) == 4


def test_tags_come_back():
    tags = identity.encode_tags(launch_spec(), created=1763434.25, usd_per_hour=0.59, region="us-east")
    assert identity.decode_tags(tags) == InstanceTags(
        claim="claim-1", cluster=CLUSTER, created=1763434.25, usd_per_hour=0.59, lifetime=600.0, region="us-east"
    )


@pytest.mark.parametrize("tags", [{}, {"claim": "c", "cluster": CLUSTER}, {"owner": "someone", "claim": "c"}])
def test_foreign_tags_name_no_claim(tags):
    assert identity.decode_tags(tags) == InstanceTags()


@pytest.mark.parametrize("number", ["nan", "inf", "-1", "1e99", "x"])
def test_forged_numbers_count_as_unknown(number):
    tags = {"owner": "skysail", "claim": "c", "cluster": "k", "created": number, "usd-per-hour": number}
    decoded = identity.decode_tags(tags)
    assert (decoded.created, decoded.usd_per_hour) == (0.0, 0.0)


@pytest.mark.parametrize("claim", ["", "a/b", "x" * 64])
def test_name_that_modal_rejects_is_rejected_before_the_call(claim):
    with pytest.raises(Rejected):
        identity.sandbox_name(claim)
