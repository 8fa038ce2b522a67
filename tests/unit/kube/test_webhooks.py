"""Certificates and announcement of the admission server, on the simulated API server."""

import base64
import ssl
from datetime import timedelta

import pytest
from cryptography import x509

from skysail.kinds.offload.admit import HOOKS
from skysail.kube import webhooks
from skysail.kube.admission import Address
from skysail.kube.client import Client
from skysail.kube.objects import Key, Object
from skysail.kube.resources import CLUSTER_ROLE, MUTATING_WEBHOOK, SECRET
from skysail.kube.webhooks import Keeper, covers
from tests.simulation.api import ApiModel
from tests.simulation.world import EPOCH, World
from tests.support import virtual_time

KEY = Key("default", "skysail-webhook")
NAMES = ("skysail-webhook.default.svc", "10.0.0.1")


class Site:
    """A cluster with any number of replicas in it."""

    def __init__(self) -> None:
        self.world = World()
        self.client = Client(ApiModel(self.world))
        self.now = EPOCH

    def keeper(self) -> Keeper:
        return Keeper(
            self.client,
            secret=KEY,
            address=Address(url="https://10.0.0.1:9443"),
            names=NAMES,
            now=lambda: self.now,
        )

    def secret(self) -> dict:
        return self.world.objects[SECRET][(KEY.namespace, KEY.name)]

    def configuration(self) -> dict:
        return self.world.objects[MUTATING_WEBHOOK][("", "skysail")]

    async def add_role(self) -> None:
        role = {"apiVersion": CLUSTER_ROLE.api_version, "kind": "ClusterRole", "metadata": {"name": "skysail"}}
        await self.client.create(CLUSTER_ROLE, role, Object)


def test_replicas_share_one_authority_and_nothing_is_written_twice():
    async def main():
        site = Site()
        first, second = site.keeper(), site.keeper()
        await first.load()
        version = site.secret()["metadata"]["resourceVersion"]
        await second.load()
        await first.load()
        return first._keys == second._keys, version == site.secret()["metadata"]["resourceVersion"]

    assert virtual_time.run(main()) == (True, True)


def test_the_serving_certificate_is_for_our_names_and_signed_by_the_announced_authority():
    async def main():
        site = Site()
        await site.add_role()
        keeper = site.keeper()
        await keeper.load()
        await keeper.announce(HOOKS, ("kube-system",))
        return keeper._keys, site.configuration()

    keys, configuration = virtual_time.run(main())
    leaf = x509.load_pem_x509_certificate(keys.server.certificate)
    alternatives = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert alternatives.get_values_for_type(x509.DNSName) == [NAMES[0]]
    assert [str(address) for address in alternatives.get_values_for_type(x509.IPAddress)] == [NAMES[1]]
    leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(keys.authority.certificate))
    assert all(base64.b64decode(hook["clientConfig"]["caBundle"]) == keys.bundle for hook in configuration["webhooks"])
    assert all(hook["failurePolicy"] == "Ignore" for hook in configuration["webhooks"])
    assert configuration["metadata"]["ownerReferences"][0]["kind"] == "ClusterRole"


def test_announcing_again_writes_nothing_until_somebody_changes_it():
    async def main():
        site = Site()
        await site.add_role()
        keeper = site.keeper()
        await keeper.load()
        await keeper.announce(HOOKS, ())
        versions = [site.configuration()["metadata"]["resourceVersion"]]
        await keeper.announce(HOOKS, ())
        versions.append(site.configuration()["metadata"]["resourceVersion"])
        await site.client.merge_patch(MUTATING_WEBHOOK, "", "skysail", {"webhooks": []}, Object)
        await keeper.announce(HOOKS, ())
        return versions, len(site.configuration()["webhooks"])

    versions, hooks = virtual_time.run(main())
    assert versions[0] == versions[1]
    assert hooks == len(HOOKS)


def test_an_old_serving_certificate_is_renewed_under_the_same_authority():
    async def main():
        site = Site()
        keeper = site.keeper()
        await keeper.load()
        before = keeper._keys
        site.now += timedelta(days=300)
        await keeper.load()
        return before, keeper._keys

    before, after = virtual_time.run(main())
    assert after.authority == before.authority
    assert after.server != before.server


def test_a_new_authority_is_announced_beside_the_old_one():
    async def main():
        site = Site()
        keeper, slow = site.keeper(), site.keeper()
        await keeper.load()
        await slow.load()
        site.now += timedelta(days=3000)
        await keeper.load()
        return slow._keys, keeper._keys

    slow, new = virtual_time.run(main())
    assert new.authority != slow.authority
    # A replica that has not reloaded yet still serves what the old authority signed; the bundle must cover it.
    assert slow.authority.certificate in new.bundle
    assert new.authority.certificate in new.bundle


@pytest.mark.parametrize("data", [{}, {"ca.crt": "!!"}, {"ca.crt": "AAAA", "tls.crt": "AAAA"}])
def test_a_secret_that_cannot_be_read_is_made_anew(data):
    async def main():
        site = Site()
        manifest = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": KEY.name, "namespace": KEY.namespace},
            "data": data,
        }
        await site.client.create(SECRET, manifest, Object)
        keeper = site.keeper()
        await keeper.load()
        return site.secret()["data"].keys(), keeper.tls

    fields, tls = virtual_time.run(main())
    assert fields >= {"ca.crt", "ca.key", "tls.crt", "tls.key"}
    assert tls.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_two_replicas_that_start_together_agree():
    import asyncio

    async def main():
        site = Site()
        keepers = [site.keeper() for _ in range(3)]
        await asyncio.gather(*(keeper.load() for keeper in keepers))
        return len({keeper._keys.authority.certificate for keeper in keepers})

    assert virtual_time.run(main()) == 1


@pytest.mark.parametrize(
    ("present", "wanted", "want"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1}, {"a": 2}, False),
        ([{"a": 1, "x": 0}], [{"a": 1}], True),
        ([1, 2], [1], False),
        (None, [], False),
        ("x", {"a": 1}, False),
    ],
)
def test_what_the_server_added_is_no_difference(present, wanted, want):
    assert covers(present, wanted) is want


def test_the_rights_name_the_objects_that_the_code_uses():
    assert {right.names for right in webhooks.OWN_NAMESPACE_RIGHTS} == {(), (KEY.name,)}
