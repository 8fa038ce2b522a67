"""Every field of a pod, and what becomes of it: carried, harmless to leave, or told by its path.

`FATES` has a row for each field of each type; the plane's own description of its API is compared with it elsewhere, so
a Kubernetes with a new field fails a test until somebody has decided.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec
import pytest

from skysail.cloud.provider import Features
from skysail.node import pod_types
from skysail.node.sync import unsupported_fields
from skysail.node.sync.unsupported_fields import UnsupportedFields
from tests.unit.node.pods import MAIN, container, pod

LOCAL = Features(
    exec=True,
    port_forward=True,
    volumes=True,
    multi_container=True,
    host_network=True,
    capabilities=frozenset({"CHOWN", "NET_BIND_SERVICE"}),
    ignored_capabilities=frozenset({"NET_RAW"}),
    user_namespaces=True,
    supplemental_groups=True,
)


class Carried(NamedTuple):
    """A node does it."""


class Harmless(NamedTuple):
    """A pod runs as it should without the node looking at it."""

    why: str


class Told(NamedTuple):
    """A value that cannot be carried; `refused` where the pod is not run because of it."""

    value: Any
    refused: bool = True
    at: str = ""  # deeper than the field itself


CARRIED = Carried()
SCHEDULER = Harmless("decided before the pod comes to a node")
ADMISSION = Harmless("done by admission")
IMAGES = Harmless("there is no registry: an image is an environment of the node")
ALIAS = Harmless("an old name of another field")
SECCOMP = Told({"type": "Localhost", "localhostProfile": "x"})
LOCALHOST = Told({"type": "Localhost", "localhostProfile": "x"}, refused=False)
SE_LINUX = Told({"level": "s0"}, refused=False)
WINDOWS = Told({"runAsUserName": "x"}, refused=False)
CLAIM = Told([{"name": "gpu", "resourceClaimName": "gpu"}])
TOLD_VOLUMES = {
    "awsElasticBlockStore": {"volumeID": "x"},
    "azureDisk": {"diskName": "x", "diskURI": "x"},
    "azureFile": {"secretName": "x", "shareName": "x"},
    "cephfs": {"monitors": ["x"]},
    "cinder": {"volumeID": "x"},
    "csi": {"driver": "x"},
    "ephemeral": {"volumeClaimTemplate": {"spec": {}}},
    "fc": {},
    "flexVolume": {"driver": "x"},
    "flocker": {},
    "gcePersistentDisk": {"pdName": "x"},
    "gitRepo": {"repository": "x"},
    "glusterfs": {"endpoints": "x", "path": "x"},
    "image": {"reference": "x"},
    "iscsi": {"targetPortal": "x", "iqn": "x", "lun": 0},
    "nfs": {"server": "x", "path": "/"},
    "photonPersistentDisk": {"pdID": "x"},
    "portworxVolume": {"volumeID": "x"},
    "quobyte": {"registry": "x", "volume": "x"},
    "rbd": {"monitors": ["x"], "image": "x"},
    "scaleIO": {"gateway": "x", "system": "x", "secretRef": {}},
    "storageos": {},
    "vsphereVolume": {"volumePath": "x"},
}

FATES: dict[str, dict[str, Carried | Harmless | Told]] = {
    "PodSpec": {
        "activeDeadlineSeconds": CARRIED,
        "affinity": CARRIED,
        "automountServiceAccountToken": ADMISSION,
        "containers": CARRIED,
        "dnsConfig": Told({"nameservers": ["192.0.2.1"]}, refused=False),
        "dnsPolicy": Told("None", refused=False),
        "enableServiceLinks": CARRIED,
        "ephemeralContainers": Told([{"name": "debug", "image": "busybox"}], refused=False),
        "hostAliases": CARRIED,
        "hostIPC": Told(True),
        "hostNetwork": CARRIED,
        "hostPID": Told(True),
        "hostUsers": CARRIED,
        "hostname": CARRIED,
        "hostnameOverride": CARRIED,
        "imagePullSecrets": CARRIED,
        "initContainers": CARRIED,
        "nodeName": CARRIED,
        "nodeSelector": CARRIED,
        "os": Told({"name": "windows"}, at="name"),
        "overhead": SCHEDULER,
        "preemptionPolicy": SCHEDULER,
        "priority": SCHEDULER,
        "priorityClassName": SCHEDULER,
        "readinessGates": CARRIED,
        "resourceClaims": CLAIM,
        "resources": Told({"limits": {"cpu": "1"}}, refused=False),
        "restartPolicy": CARRIED,
        "runtimeClassName": Told("gvisor"),
        "schedulerName": SCHEDULER,
        "schedulingGates": SCHEDULER,
        "schedulingGroup": SCHEDULER,
        "securityContext": CARRIED,
        "serviceAccount": ALIAS,
        "serviceAccountName": CARRIED,
        "setHostnameAsFQDN": Told(True, refused=False),
        "shareProcessNamespace": Told(True),
        "subdomain": CARRIED,
        "terminationGracePeriodSeconds": CARRIED,
        "tolerations": CARRIED,
        "topologySpreadConstraints": SCHEDULER,
        "volumes": CARRIED,
    },
    "PodSecurityContext": {
        "appArmorProfile": LOCALHOST,
        "fsGroup": CARRIED,
        "fsGroupChangePolicy": CARRIED,
        "runAsGroup": CARRIED,
        "runAsNonRoot": CARRIED,
        "runAsUser": CARRIED,
        "seLinuxChangePolicy": Harmless("there are no labels to change"),
        "seLinuxOptions": SE_LINUX,
        "seccompProfile": SECCOMP,
        "supplementalGroups": CARRIED,
        "supplementalGroupsPolicy": Harmless("an environment has no groups of its own to merge"),
        "sysctls": Told([{"name": "kernel.shm_rmid_forced", "value": "1"}]),
        "windowsOptions": WINDOWS,
    },
    "Container": {
        "args": CARRIED,
        "command": CARRIED,
        "env": CARRIED,
        "envFrom": CARRIED,
        "image": CARRIED,
        "imagePullPolicy": IMAGES,
        "lifecycle": CARRIED,
        "livenessProbe": CARRIED,
        "name": CARRIED,
        "ports": CARRIED,
        "readinessProbe": CARRIED,
        "resizePolicy": Harmless("says how to resize, which nobody does here"),
        "resources": CARRIED,
        "restartPolicy": Told("OnFailure"),
        "restartPolicyRules": Told([{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]),
        "securityContext": CARRIED,
        "startupProbe": CARRIED,
        "stdin": CARRIED,
        "stdinOnce": CARRIED,
        "terminationMessagePath": CARRIED,
        "terminationMessagePolicy": CARRIED,
        "tty": CARRIED,
        "volumeDevices": Told([{"name": "v", "devicePath": "/dev/x"}]),
        "volumeMounts": CARRIED,
        "workingDir": CARRIED,
    },
    "SecurityContext": {
        "allowPrivilegeEscalation": Harmless("never allowed here, as the strictest pods ask for"),
        "appArmorProfile": LOCALHOST,
        "capabilities": Told({"add": ["SYS_ADMIN"]}, at="add"),
        "privileged": Told(True),
        "procMount": Told("Unmasked"),
        "readOnlyRootFilesystem": CARRIED,
        "runAsGroup": CARRIED,
        "runAsNonRoot": CARRIED,
        "runAsUser": CARRIED,
        "seLinuxOptions": SE_LINUX,
        "seccompProfile": SECCOMP,
        "windowsOptions": WINDOWS,
    },
    "Lifecycle": {"postStart": CARRIED, "preStop": CARRIED, "stopSignal": Told("SIGUSR1", refused=False)},
    "LifecycleHandler": {"exec": CARRIED, "httpGet": CARRIED, "sleep": CARRIED, "tcpSocket": CARRIED},
    "Probe": {
        "exec": CARRIED,
        "failureThreshold": CARRIED,
        "grpc": CARRIED,
        "httpGet": CARRIED,
        "initialDelaySeconds": CARRIED,
        "periodSeconds": CARRIED,
        "successThreshold": CARRIED,
        "tcpSocket": CARRIED,
        "terminationGracePeriodSeconds": CARRIED,
        "timeoutSeconds": CARRIED,
    },
    "HTTPGetAction": {
        "host": Told("192.0.2.1"),
        "httpHeaders": CARRIED,
        "path": CARRIED,
        "port": CARRIED,
        "scheme": CARRIED,
    },
    "TCPSocketAction": {"host": Told("192.0.2.1"), "port": CARRIED},
    "ContainerPort": {
        "containerPort": CARRIED,
        "hostIP": Harmless("means nothing without a hostPort"),
        "hostPort": Told(8080, refused=False),
        "name": CARRIED,
        "protocol": CARRIED,
    },
    "EnvVarSource": {
        "configMapKeyRef": CARRIED,
        "fieldRef": CARRIED,
        "fileKeyRef": Told({"volumeName": "v", "path": "p", "key": "k"}),
        "resourceFieldRef": CARRIED,
        "secretKeyRef": CARRIED,
    },
    "EnvFromSource": {"configMapRef": CARRIED, "prefix": CARRIED, "secretRef": CARRIED},
    "ResourceRequirements": {"claims": Told([{"name": "gpu"}]), "limits": CARRIED, "requests": CARRIED},
    "VolumeMount": {
        "mountPath": CARRIED,
        "mountPropagation": Told("HostToContainer", refused=False),
        "name": CARRIED,
        "readOnly": CARRIED,
        "recursiveReadOnly": Told("Enabled", refused=False),
        "subPath": CARRIED,
        "subPathExpr": CARRIED,
    },
    "Volume": {
        **dict.fromkeys(
            (
                "configMap",
                "downwardAPI",
                "emptyDir",
                "hostPath",
                "name",
                "persistentVolumeClaim",
                "projected",
                "secret",
            ),
            CARRIED,
        ),
        **{name: Told(source) for name, source in TOLD_VOLUMES.items()},
    },
    "VolumeProjection": {
        "clusterTrustBundle": Told({"path": "x"}),
        "configMap": CARRIED,
        "downwardAPI": CARRIED,
        "podCertificate": Told({"signerName": "x", "keyType": "ED25519"}),
        "secret": CARRIED,
        "serviceAccountToken": CARRIED,
    },
    "EmptyDirVolumeSource": {"medium": CARRIED, "sizeLimit": CARRIED},
}

MAIN_CONTAINER = "spec.containers[0]"
# Where an object of each type can stand in a pod: its path, and the pod's spec around it.
PLACES = {
    "PodSpec": ("spec", lambda it: it),
    "PodSecurityContext": ("spec.securityContext", lambda it: {"securityContext": it}),
    "Container": (MAIN_CONTAINER, lambda it: {"containers": [{**MAIN, **it}]}),
    "SecurityContext": (f"{MAIN_CONTAINER}.securityContext", lambda it: with_main(securityContext=it)),
    "Lifecycle": (f"{MAIN_CONTAINER}.lifecycle", lambda it: with_main(lifecycle=it)),
    "HTTPGetAction": (
        f"{MAIN_CONTAINER}.livenessProbe.httpGet",
        lambda it: with_main(livenessProbe={"httpGet": {"port": 1, **it}}),
    ),
    "TCPSocketAction": (
        f"{MAIN_CONTAINER}.lifecycle.preStop.tcpSocket",
        lambda it: with_main(lifecycle={"preStop": {"tcpSocket": {"port": 1, **it}}}),
    ),
    "ContainerPort": (f"{MAIN_CONTAINER}.ports", lambda it: with_main(ports=[{"containerPort": 1, **it}])),
    "EnvVarSource": (f"{MAIN_CONTAINER}.env[0].valueFrom", lambda it: with_main(env=[{"name": "A", "valueFrom": it}])),
    "ResourceRequirements": (f"{MAIN_CONTAINER}.resources", lambda it: with_main(resources=it)),
    "VolumeMount": (
        f"{MAIN_CONTAINER}.volumeMounts",
        lambda it: with_main(volumeMounts=[{"name": "v", "mountPath": "/v", **it}]),
    ),
    "Volume": ("spec.volumes[0] (v)", lambda it: {"volumes": [{"name": "v", **it}]}),
    "VolumeProjection": (
        "spec.volumes[0] (v)",
        lambda it: {"volumes": [{"name": "v", "projected": {"sources": [it]}}]},
    ),
}
TYPES = {
    "PodSpec": pod_types.PodSpec,
    "PodSecurityContext": pod_types.SecurityContext,
    "Container": pod_types.Container,
    "SecurityContext": pod_types.SecurityContext,
    "Lifecycle": pod_types.Lifecycle,
    "LifecycleHandler": pod_types.Handler,
    "Probe": pod_types.Probe,
    "HTTPGetAction": pod_types.HttpAction,
    "TCPSocketAction": pod_types.TcpAction,
    "ContainerPort": pod_types.Port,
    "EnvVarSource": pod_types.ValueSource,
    "EnvFromSource": pod_types.EnvFrom,
    "ResourceRequirements": pod_types.Resources,
    "VolumeMount": pod_types.VolumeMount,
    "Volume": pod_types.Volume,
    "VolumeProjection": pod_types.ProjectedPart,
    "EmptyDirVolumeSource": pod_types.EmptyDir,
}


def with_main(**fields: Any) -> dict[str, Any]:
    return {"containers": [{**MAIN, **fields}]}


def told_rows():
    rows = ((kind, field, fate) for kind, fields in FATES.items() for field, fate in fields.items())
    return [pytest.param(*row, id=f"{row[0]}.{row[1]}") for row in rows if isinstance(row[2], Told)]


@pytest.mark.parametrize(("kind", "field", "fate"), told_rows())
def test_a_field_that_is_not_carried_is_told_by_its_path(kind, field, fate):
    path, around = PLACES[kind]
    found = unsupported_fields.find(
        msgspec.convert({"metadata": {}, "spec": {**with_main(), **around({field: fate.value})}}, pod_types.Pod), LOCAL
    )
    sentences, others = (found.rejected, found.ignored) if fate.refused else (found.ignored, found.rejected)
    named = path if kind.startswith("Volume") and kind != "VolumeMount" else f"{path}.{field}"
    assert len(sentences) == 1
    assert sentences[0].startswith(f"{named}.{fate.at}" if fate.at else named)
    assert re.fullmatch(r"spec\S+( \(v\))?(:| is) .+\.", sentences[0]), sentences[0]
    assert others == ()


@pytest.mark.parametrize("kind", FATES)
def test_what_is_carried_or_told_is_read_and_the_rest_is_not(kind):
    read = {field.encode_name for field in msgspec.structs.fields(TYPES[kind])}
    rows = FATES[kind]
    assert {name for name, fate in rows.items() if isinstance(fate, Carried)} <= read
    assert not {name for name, fate in rows.items() if isinstance(fate, Harmless)} & read


def test_an_ordinary_pod_is_no_burden():
    restricted = {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE", "cap_chown"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    of = pod(
        container("main", securityContext=restricted, livenessProbe={"grpc": {"port": 1}}),
        initContainers=[container("i", restartPolicy="Always", readinessProbe={"httpGet": {"port": 1}})],
        volumes=[{"name": "v", "emptyDir": {}}],
        hostNetwork=True,
    )
    assert unsupported_fields.find(of, LOCAL) == UnsupportedFields()


def test_the_host_network_is_rejected_with_the_setting_that_allows_it():
    of = msgspec.convert({"metadata": {}, "spec": {**with_main(), "hostNetwork": True}}, pod_types.Pod)
    (refused,) = unsupported_fields.find(of, msgspec.structs.replace(LOCAL, host_network=False)).rejected
    assert refused == "spec.hostNetwork: this node has no network that a pod could share."
    without = msgspec.structs.replace(LOCAL, host_network=False, host_network_setting="SETTING")
    (refused,) = unsupported_fields.find(of, without).rejected
    assert refused.startswith("spec.hostNetwork: ")
    assert "`SETTING=true skysail up`" in refused


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"hostNetwork": True}, "spec.hostNetwork"),
        ({"volumes": [{"name": "v", "emptyDir": {}}]}, "spec.volumes[0] (v)"),
        ({"initContainers": [container("i")]}, "spec.containers"),
        (with_main(securityContext={"capabilities": {"add": ["CHOWN"]}}), f"{MAIN_CONTAINER}.securityContext.capab"),
        (with_main(livenessProbe={"httpGet": {"port": 1}}), f"{MAIN_CONTAINER}.livenessProbe.httpGet"),
        (with_main(readinessProbe={"grpc": {"port": 1}}), f"{MAIN_CONTAINER}.readinessProbe.grpc"),
        (with_main(startupProbe={"exec": {"command": ["x"]}}), f"{MAIN_CONTAINER}.startupProbe.exec"),
        (with_main(lifecycle={"preStop": {"exec": {"command": ["x"]}}}), f"{MAIN_CONTAINER}.lifecycle.preStop.exec"),
    ],
)
def test_what_a_provider_has_no_ability_for_is_named_by_its_field(spec, named):
    of = msgspec.convert({"metadata": {}, "spec": {**with_main(), **spec}}, pod_types.Pod)
    (refused,) = unsupported_fields.find(of, Features()).rejected
    assert refused.startswith(named)


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"hostUsers": False}, "spec.hostUsers"),
        ({"securityContext": {"supplementalGroups": [4]}}, "spec.securityContext.supplementalGroups"),
    ],
)
def test_users_and_groups_that_a_provider_lacks_are_ignored_by_their_field(spec, named):
    of = msgspec.convert({"metadata": {}, "spec": {**with_main(), **spec}}, pod_types.Pod)
    found = unsupported_fields.find(of, Features())
    assert found.rejected == ()
    assert [sentence.partition(":")[0] for sentence in found.ignored] == [named]


@pytest.mark.parametrize("name", ["NET_RAW", "net_raw", "CAP_NET_RAW"])
def test_a_capability_without_effect_is_ignored_by_its_field(name):
    of = pod(container("main", securityContext={"capabilities": {"add": [name]}}))
    found = unsupported_fields.find(of, LOCAL)
    assert found.rejected == ()
    (ignored,) = found.ignored
    assert ignored.startswith(f"{MAIN_CONTAINER}.securityContext.capabilities.add: NET_RAW has no effect")


@pytest.mark.parametrize("profile", ["RuntimeDefault", "Unconfined"])
def test_a_seccomp_profile_that_the_node_has_is_carried(profile):
    shared = {"seccompProfile": {"type": profile}}
    assert unsupported_fields.find(pod(container("main", securityContext=shared), securityContext=shared), LOCAL) == (
        UnsupportedFields()
    )


def test_no_more_sentences_than_a_person_reads():
    of = pod(volumes=[{"name": f"v{number}", "nfs": {}} for number in range(1000)])
    refused = unsupported_fields.find(of, LOCAL).rejected
    assert (len(refused), refused[-1]) == (21, "And 980 more fields.")


def test_a_pod_with_too_many_containers_is_looked_at_in_part():
    of = pod(*(container(f"c{number}") for number in range(60)), initContainers=[container(f"i{n}") for n in range(60)])
    (refused,) = unsupported_fields.find(of, LOCAL).rejected
    assert refused == (
        "spec.containers: this node runs at most 100 containers per pod, and this pod has 120: split the pod."
    )
    bounded = unsupported_fields.bounded(of).spec
    assert (len(bounded.containers), len(bounded.init_containers)) == (50, 50)


def test_containers_for_debugging_do_not_end_a_pod():
    debug = [container(f"d{number}") for number in range(500)]
    of = pod(container("main"), ephemeralContainers=debug)
    assert not unsupported_fields.find(of, LOCAL).rejected
    bounded = unsupported_fields.bounded(of).spec
    assert (len(bounded.containers), len(bounded.ephemeral_containers)) == (1, 100)


def test_an_ordinary_pod_is_looked_at_whole():
    of = pod(container("main"))
    assert unsupported_fields.bounded(of) is of
