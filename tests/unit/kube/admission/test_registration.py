"""Certificates and announcement of the admission server, on the simulated API server."""

import base64
import ssl
from datetime import timedelta

import pytest
from cryptography import x509

from skysail.kinds.offload.resource_limits_webhook import HOOKS
from skysail.kube import certificates
from skysail.kube.admission import registration
from skysail.kube.admission.registration import WebhookRegistrar, covers
from skysail.kube.admission.server import NamespaceScope, WebhookAddress
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import CLUSTER_ROLE, MUTATING_WEBHOOK, SECRET
from skysail.kube.client.client import Client
from tests.simulation.api import ApiModel
from tests.simulation.world import EPOCH, World
from tests.support import virtual_time

KEY = Key("default", "skysail-webhook")
NAMES = ("skysail-webhook.default.svc", "10.0.0.1")


class Harness:
    """A cluster with any number of replicas in it."""

    def __init__(self) -> None:
        self.world = World()
        self.client = Client(ApiModel(self.world))
        self.now = EPOCH

    def keeper(self) -> WebhookRegistrar:
        return WebhookRegistrar(
            self.client,
            secret=KEY,
            webhook_address=WebhookAddress(url="https://10.0.0.1:9443"),
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
        harness = Harness()
        first, second = harness.keeper(), harness.keeper()
        await first.load_certificate()
        version = harness.secret()["metadata"]["resourceVersion"]
        await second.load_certificate()
        await first.load_certificate()
        return first._keys == second._keys, version == harness.secret()["metadata"]["resourceVersion"]

    assert virtual_time.run(main()) == (True, True)


def test_registration_serving_certificate_has_our_names_and_announced_ca():
    async def main():
        harness = Harness()
        await harness.add_role()
        registrar = harness.keeper()
        await registrar.load_certificate()
        await registrar.register(HOOKS, NamespaceScope(excluded=("kube-system",)))
        return registrar._keys, harness.configuration()

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
        harness = Harness()
        await harness.add_role()
        registrar = harness.keeper()
        await registrar.load_certificate()
        await registrar.register(HOOKS, NamespaceScope())
        versions = [harness.configuration()["metadata"]["resourceVersion"]]
        await registrar.register(HOOKS, NamespaceScope())
        versions.append(harness.configuration()["metadata"]["resourceVersion"])
        await harness.client.merge_patch(MUTATING_WEBHOOK, "", "skysail", {"webhooks": []}, Object)
        await registrar.register(HOOKS, NamespaceScope())
        return versions, len(harness.configuration()["webhooks"])

    versions, hooks = virtual_time.run(main())
    assert versions[0] == versions[1]
    assert hooks == len(HOOKS)


def test_an_old_serving_certificate_is_renewed_under_the_same_authority():
    async def main():
        harness = Harness()
        registrar = harness.keeper()
        await registrar.load_certificate()
        before = registrar._keys
        harness.now += timedelta(days=300)
        await registrar.load_certificate()
        return before, registrar._keys

    before, after = virtual_time.run(main())
    assert after.authority == before.authority
    assert after.server != before.server


def test_a_new_authority_signs_only_after_it_was_announced_beside_the_old_one():
    async def main():
        harness = Harness()
        await harness.add_role()
        leader, follower = harness.keeper(), harness.keeper()
        await leader.load_certificate()
        await leader.register(HOOKS, NamespaceScope())
        await follower.load_certificate()
        before = leader._keys
        harness.now += timedelta(days=3000)
        await follower.load_certificate()
        waiting = follower._keys
        await leader.load_certificate()
        await leader.register(HOOKS, NamespaceScope())
        bundle = base64.b64decode(harness.configuration()["webhooks"][0]["clientConfig"]["caBundle"])
        await follower.load_certificate()
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
        harness = Harness()
        registrar = harness.keeper()
        await registrar.load_certificate()
        moved = WebhookRegistrar(
            harness.client,
            secret=KEY,
            webhook_address=WebhookAddress(url="https://10.0.0.2:9443"),
            names=("10.0.0.2",),
            now=lambda: harness.now,
        )
        await moved.load_certificate()
        return registrar._keys, moved._keys

    before, after = virtual_time.run(main())
    assert after.authority == before.authority
    assert after.server.covers(["10.0.0.2"])
    assert not before.server.covers(["10.0.0.2"])


def test_a_deleted_secret_comes_back_as_it_was():
    async def main():
        harness = Harness()
        registrar = harness.keeper()
        await registrar.load_certificate()
        before = harness.secret()["data"]
        await harness.client.delete(SECRET, await harness.client.get(SECRET, KEY.namespace, KEY.name, Object), Object)
        await registrar.load_certificate()
        return before, harness.secret()["data"]

    before, after = virtual_time.run(main())
    assert before == after


def test_a_key_that_is_not_the_certificates_is_made_anew():
    async def main():
        harness = Harness()
        await harness.keeper().load_certificate()
        other = certificates.certificate_authority("other", now=EPOCH, valid=timedelta(days=1))
        patch = {"data": {"tls.key": base64.b64encode(other.key).decode()}}
        await harness.client.merge_patch(SECRET, KEY.namespace, KEY.name, patch, Object)
        registrar = harness.keeper()
        await registrar.load_certificate()
        return registrar._keys

    assert virtual_time.run(main()).server.is_sound


@pytest.mark.parametrize("data", [{}, {"ca.crt": "!!"}, {"ca.crt": "AAAA", "tls.crt": "AAAA"}])
def test_a_secret_that_cannot_be_read_is_made_anew(data):
    async def main():
        harness = Harness()
        manifest = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": KEY.name, "namespace": KEY.namespace},
            "data": data,
        }
        await harness.client.create(SECRET, manifest, Object)
        registrar = harness.keeper()
        await registrar.load_certificate()
        return harness.secret()["data"].keys(), registrar.tls

    fields, tls = virtual_time.run(main())
    assert fields >= {"ca.crt", "ca.key", "tls.crt", "tls.key"}
    assert tls.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_two_replicas_that_start_together_agree():
    import asyncio

    async def main():
        harness = Harness()
        registrars = [harness.keeper() for _ in range(3)]
        await asyncio.gather(*(registrar.load_certificate() for registrar in registrars))
        return len({registrar._keys.authority.certificate for registrar in registrars})

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
    assert {policy_rule.names for policy_rule in registration.NAMESPACE_POLICY_RULES} == {(), (KEY.name,)}
