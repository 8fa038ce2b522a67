"""From a pod of Kubernetes to what a provider runs."""

from __future__ import annotations

import msgspec
import pytest

from skysail.cloud import provider
from skysail.node.config import container_config
from skysail.node.config.env import ResolvedReferences
from skysail.node.config.errors import Missing
from tests.unit.node.pods import container, pod

FACTS = ResolvedReferences(
    config_maps={"c": {"one": b"1", "two": b"2"}}, secrets={"s": {"key": b"k"}}, services={}, disks={"claim": "disk-7"}
)


def volume(**source) -> provider.EmptyDir | provider.ProjectedFiles | provider.HostPath | provider.PersistentDisk:
    of = pod(volumes=[{"name": "v", **source}])
    resolved = msgspec.structs.replace(FACTS, tokens=dict.fromkeys(container_config.required_refs(of).tokens, "token"))
    return container_config.sandbox(of, resolved).volumes[0].source


def files(**source) -> dict[str, tuple[bytes, int]]:
    found = volume(**source)
    assert isinstance(found, provider.ProjectedFiles)
    return {file.path: (file.content, file.mode) for file in found.files}


def test_a_container_with_all_that_it_names():
    source = container(
        "main",
        command=["run", "$(A)"],
        args=["$(A)$$"],
        env=[{"name": "A", "value": "1"}],
        workingDir="/w",
        resources={"limits": {"cpu": "500m", "memory": "1Gi", "nvidia.com/gpu": 2}},
        volumeMounts=[{"name": "v", "mountPath": "/v", "subPathExpr": "in/$(A)", "readOnly": True}],
        stdin=True,
        tty=True,
    )
    of = pod(source, securityContext={"runAsUser": 1000})
    made = container_config.container(of, of.spec.containers[0], FACTS)
    assert (made.command, made.args, made.working_dir) == (("run", "1"), ("1$",), "/w")
    assert made.limits == provider.ResourceLimits(cpu=0.5, memory=2**30, gpus=2)
    assert made.mounts == (provider.Mount(volume="v", path="/v", sub_path="in/1", read_only=True),)
    assert (made.stdin, made.tty, made.rights.user) == (True, True, 1000)


@pytest.mark.parametrize("path", ["/etc", "../x", "a/../../b"])
def test_a_sub_path_stays_in_its_volume(path):
    of = pod(container("main", volumeMounts=[{"name": "v", "mountPath": "/v", "subPath": path}]))
    with pytest.raises(Missing, match="leads out"):
        container_config.container(of, of.spec.containers[0], FACTS)


@pytest.mark.parametrize(
    ("source", "made"),
    [
        ({"emptyDir": {}}, provider.EmptyDir()),
        ({"emptyDir": {"medium": "Memory", "sizeLimit": "1Ki"}}, provider.EmptyDir(in_memory=True, size_limit=1024)),
        ({"hostPath": {"path": "/data"}}, provider.HostPath("/data")),
        ({"hostPath": {"path": "/d", "type": "DirectoryOrCreate"}}, provider.HostPath("/d", create=True)),
        ({"persistentVolumeClaim": {"claimName": "claim"}}, provider.PersistentDisk("disk-7")),
    ],
)
def test_volumes_without_content(source, made):
    assert volume(**source) == made


def test_a_config_map_is_a_file_for_each_key():
    assert files(configMap={"name": "c"}) == {"one": (b"1", 0o644), "two": (b"2", 0o644)}


def test_named_keys_go_to_named_paths():
    items = [{"key": "two", "path": "deep/2", "mode": 0o600}]
    assert files(configMap={"name": "c", "items": items, "defaultMode": 0o400}) == {"deep/2": (b"2", 0o600)}


def test_a_secret_and_its_mode():
    assert files(secret={"secretName": "s", "defaultMode": 0o400}) == {"key": (b"k", 0o400)}


def test_everything_in_one_projected_volume():
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "c", "items": [{"key": "one", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    found = files(projected={"sources": sources})
    assert {path: content for path, (content, _) in found.items()} == {
        "token": b"token",
        "ca.crt": b"1",
        "namespace": b"n",
    }


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ({"configMap": {"name": "none"}}, "MandatoryConfigMapNotFound"),
        ({"secret": {"secretName": "none"}}, "MandatorySecretNotFound"),
        ({"configMap": {"name": "c", "items": [{"key": "x", "path": "x"}]}}, "MandatoryConfigMapNotFound"),
        ({"persistentVolumeClaim": {"claimName": "unbound"}}, "ClaimNotBound"),
    ],
)
def test_a_volume_waits_for_what_it_is_made_of(source, reason):
    with pytest.raises(Missing) as missing:
        volume(**source)
    assert missing.value.reason == reason


def test_an_optional_volume_is_empty_and_its_owner_is_told():
    of = pod(volumes=[{"name": "v", "secret": {"secretName": "none", "optional": True}}])
    assert container_config.sandbox(of, FACTS).volumes[0].source == provider.ProjectedFiles(())
    assert [(row.kind, row.name) for row in container_config.missing_optional_refs(of, FACTS)] == [("Secret", "none")]


def test_what_must_be_looked_up():
    of = pod(
        container("main", envFrom=[{"secretRef": {"name": "s"}}, {"configMapRef": {"name": "c"}}]),
        volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "p"}}],
    )
    found = container_config.required_refs(of)
    assert (found.secrets, found.config_maps, found.pvcs) == ({"s"}, {"c"}, {"p"})


@pytest.mark.parametrize(
    ("own", "shared", "rights"),
    [
        ({}, {}, provider.SecurityContext()),
        ({}, {"runAsUser": 5, "runAsGroup": 6}, provider.SecurityContext(user=5, group=6)),
        (
            {"runAsUser": 0, "runAsGroup": 7},
            {"runAsUser": 5, "runAsGroup": 6},
            provider.SecurityContext(user=0, group=7),
        ),
        ({}, {"runAsNonRoot": True}, provider.SecurityContext(run_as_non_root=True)),
        ({"runAsNonRoot": False, "runAsUser": 0}, {"runAsNonRoot": True}, provider.SecurityContext(user=0)),
        (
            {"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}, "readOnlyRootFilesystem": True},
            {},
            provider.SecurityContext(drop=frozenset({"ALL"}), add=frozenset({"NET_BIND_SERVICE"}), read_only_root=True),
        ),
        ({}, {"seccompProfile": {"type": "RuntimeDefault"}}, provider.SecurityContext()),
        ({}, {"seccompProfile": {"type": "Unconfined"}}, provider.SecurityContext(is_unconfined=True)),
        (
            {"seccompProfile": {"type": "RuntimeDefault"}},
            {"seccompProfile": {"type": "Unconfined"}},
            provider.SecurityContext(),
        ),
        (
            {"capabilities": {"drop": ["all", "CAP_NET_RAW"], "add": ["cap_chown"]}},
            {},
            provider.SecurityContext(drop=frozenset({"ALL", "NET_RAW"}), add=frozenset({"CHOWN"})),
        ),
    ],
)
def test_what_a_container_says_of_its_rights_comes_before_what_its_pod_says(own, shared, rights):
    of = pod(container("main", securityContext=own), securityContext=shared)
    assert container_config.container(of, of.spec.containers[0], FACTS).rights == rights


def test_the_groups_of_a_pod_are_handed_on():
    groups = {"fsGroup": 2000, "supplementalGroups": [3000, 4], "fsGroupChangePolicy": "OnRootMismatch"}
    found = container_config.sandbox(pod(securityContext=groups), FACTS)
    assert (found.fs_group, found.groups, found.keeps_matching_groups) == (2000, {3000, 4}, True)
    assert container_config.sandbox(pod(), FACTS).fs_group is None


def test_a_container_that_must_not_be_root_is_not_started_as_root():
    of = pod(container("main", securityContext={"runAsUser": 0}), securityContext={"runAsNonRoot": True})
    with pytest.raises(Missing, match="runAsNonRoot"):
        container_config.container(of, of.spec.containers[0], FACTS)


@pytest.mark.parametrize(
    ("mains", "inits", "limit"),
    [
        ([None], [], None),
        (["1Mi"], [], 2**20),
        (["1Mi", None, "1Mi"], [], 2 * 2**20),
        (["1Mi"], [("4Mi", None)], 4 * 2**20),
        (["1Mi"], [("4Mi", "Always")], 5 * 2**20),
        ([None], [("1Ki", None)], 1024),
        (["0"], [], 0),
    ],
)
def test_the_limit_of_a_pod_is_that_of_its_containers_together(mains, inits, limit):
    def one(name, amount, restart=None):
        limits = {"limits": {"ephemeral-storage": amount}} if amount is not None else {}
        return container(name, resources=limits, restartPolicy=restart)

    of = pod(
        *(one(f"c{place}", amount) for place, amount in enumerate(mains)),
        initContainers=[one(f"i{place}", amount, restart) for place, (amount, restart) in enumerate(inits)],
    )
    assert container_config.sandbox(of, FACTS).ephemeral_storage == limit
    made = container_config.container(of, of.spec.containers[0], FACTS).limits.ephemeral_storage
    assert (made is None) == (mains[0] is None)
