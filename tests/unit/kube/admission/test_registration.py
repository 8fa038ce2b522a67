"""Certificates and announcement of the admission server, on the simulated API server."""

import base64
import ssl
from datetime import timedelta

import pytest
from cryptography import x509

from skysail.kinds.offload.resource_limits_webhook import HOOKS
from skysail.kube import certificates
from skysail.kube.admission import registration
from skysail.kube.admission.registration import Keeper, covers
from skysail.kube.admission.server import Address, Scope
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import CLUSTER_ROLE, MUTATING_WEBHOOK, SECRET
from skysail.kube.client.client import Client
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
        await keeper.announce(HOOKS, Scope(without=("kube-system",)))
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
        await keeper.announce(HOOKS, Scope())
        versions = [site.configuration()["metadata"]["resourceVersion"]]
        await keeper.announce(HOOKS, Scope())
        versions.append(site.configuration()["metadata"]["resourceVersion"])
        await site.client.merge_patch(MUTATING_WEBHOOK, "", "skysail", {"webhooks": []}, Object)
        await keeper.announce(HOOKS, Scope())
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


def test_a_new_authority_signs_only_after_it_was_announced_beside_the_old_one():
    async def main():
        site = Site()
        await site.add_role()
        leader, follower = site.keeper(), site.keeper()
        await leader.load()
        await leader.announce(HOOKS, Scope())
        await follower.load()
        before = leader._keys
        site.now += timedelta(days=3000)
        await follower.load()
        waiting = follower._keys
        await leader.load()
        await leader.announce(HOOKS, Scope())
        bundle = base64.b64decode(site.configuration()["webhooks"][0]["clientConfig"]["caBundle"])
        await follower.load()
        return before, waiting, bundle, leader._keys, follower._keys

    before, waiting, bundle, led, followed = virtual_time.run(main())
    assert waiting.authority != before.authority
    assert waiting.server == before.server  # what the API server trusts is served until it trusts the next
    assert before.authority.certificate in bundle
    assert waiting.authority.certificate in bundle
    assert led.server != before.server
    assert led.is_signed_by_authority
    assert followed == led


def test_a_certificate_for_other_names_is_made_anew_under_the_same_authority():
    async def main():
        site = Site()
        keeper = site.keeper()
        await keeper.load()
        moved = Keeper(
            site.client,
            secret=KEY,
            address=Address(url="https://10.0.0.2:9443"),
            names=("10.0.0.2",),
            now=lambda: site.now,
        )
        await moved.load()
        return keeper._keys, moved._keys

    before, after = virtual_time.run(main())
    assert after.authority == before.authority
    assert after.server.covers(["10.0.0.2"])
    assert not before.server.covers(["10.0.0.2"])


def test_a_deleted_secret_comes_back_as_it_was():
    async def main():
        site = Site()
        keeper = site.keeper()
        await keeper.load()
        before = site.secret()["data"]
        await site.client.delete(SECRET, await site.client.get(SECRET, KEY.namespace, KEY.name, Object), Object)
        await keeper.load()
        return before, site.secret()["data"]

    before, after = virtual_time.run(main())
    assert before == after


def test_a_key_that_is_not_the_certificates_is_made_anew():
    async def main():
        site = Site()
        await site.keeper().load()
        other = certificates.authority("other", now=EPOCH, valid=timedelta(days=1))
        patch = {"data": {"tls.key": base64.b64encode(other.key).decode()}}
        await site.client.merge_patch(SECRET, KEY.namespace, KEY.name, patch, Object)
        keeper = site.keeper()
        await keeper.load()
        return keeper._keys

    assert virtual_time.run(main()).server.is_sound


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
    assert {right.names for right in registration.OWN_NAMESPACE_RIGHTS} == {(), (KEY.name,)}
