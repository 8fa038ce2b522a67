"""The control plane is a whole one: what a user of Kubernetes takes for granted is there, with upstream's defaults."""

from __future__ import annotations

import json
import secrets
import ssl
import threading
from typing import TYPE_CHECKING

import pytest

from skysail.kube.client.kubeconfig import load_certificate
from skysail.local import addresses

if TYPE_CHECKING:
    from tests.support.cluster import Cluster


def apply(cluster: Cluster, *manifests: dict) -> None:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
    done = cluster.kubectl("apply", "-f", "-", stdin=text)
    assert done.returncode == 0, done.stderr


def read(cluster: Cluster, *arguments: str) -> dict:
    done = cluster.kubectl("get", "-o", "json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def pod(name: str, namespace: str = "default", **spec: object) -> dict:
    containers = [{"name": "main", "image": "example.com/any"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": containers, **spec},
    }


@pytest.fixture
def node(cluster):
    """An ordinary node whose kubelet is this test, at a port inside the local cluster."""
    name = f"node-{secrets.token_hex(3)}"
    with cluster.listen() as kubelet:
        status = {
            "capacity": {"cpu": "4", "memory": "8Gi", "pods": "10"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": ""}],
            "addresses": [{"type": "InternalIP", "address": addresses.CLUSTER_IP}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.getsockname()[1]}},
        }
        apply(cluster, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        patched = cluster.kubectl(
            "patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status})
        )
        assert patched.returncode == 0, patched.stderr
        yield name, kubelet
    cluster.kubectl("delete", "node", name)


def test_client_and_server_know_their_version(cluster):
    told = json.loads(cluster.kubectl("version", "-o", "json").stdout)
    for side in ("clientVersion", "serverVersion"):
        assert (told[side]["gitVersion"], told[side]["major"], told[side]["minor"]) == ("v1.36.3", "1", "36")


def test_a_user_may_do_what_rbac_says_and_no_more(cluster):
    ann = cluster.user("ann", "readers")
    who = json.loads(cluster.kubectl("auth", "whoami", "-o", "json", as_user=ann).stdout)["status"]["userInfo"]
    assert (who["username"], who["groups"]) == ("ann", ["readers", "system:authenticated"])
    refused = cluster.kubectl("get", "pods", as_user=ann)
    assert refused.returncode == 1
    assert 'User "ann" cannot list resource "pods"' in refused.stderr
    allowed = cluster.kubectl("create", "rolebinding", "readers", "--clusterrole=view", "--group=readers")
    assert allowed.returncode == 0, allowed.stderr
    cluster.until(lambda: cluster.kubectl("get", "pods", as_user=ann).returncode == 0, "RBAC to know the binding")
    assert cluster.kubectl("create", "configmap", "x", as_user=ann).returncode == 1


def test_a_pod_gets_its_service_accounts_token_as_everywhere(cluster):
    cluster.until(lambda: cluster.kubectl("get", "serviceaccount", "default").returncode == 0, "the service account")
    apply(cluster, pod("with-token"))
    stored = read(cluster, "pod", "with-token")
    assert stored["spec"]["serviceAccountName"] == "default"
    assert [volume["name"][:15] for volume in stored["spec"]["volumes"]] == ["kube-api-access"]
    assert {row["key"] for row in stored["spec"]["tolerations"]} == {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    }


def test_a_service_accounts_token_logs_in(cluster):
    cluster.until(lambda: cluster.kubectl("get", "serviceaccount", "default").returncode == 0, "the service account")
    token = cluster.kubectl("create", "token", "default").stdout.strip()
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    answer = cluster.kubectl("create", "-o", "json", "-f", "-", stdin=json.dumps(review))
    status = json.loads(answer.stdout)["status"]
    assert (status["authenticated"], status["user"]["username"]) == (True, "system:serviceaccount:default:default")


def test_pod_security_is_enforced_where_a_namespace_asks_for_it(cluster):
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    apply(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "strict", "labels": labels}})
    cluster.until(
        lambda: cluster.kubectl("get", "serviceaccount", "-n", "strict", "default").returncode == 0,
        "the service account",
    )
    refused = cluster.kubectl("apply", "-f", "-", stdin=json.dumps(pod("root", "strict", hostNetwork=True)))
    assert 'violates PodSecurity "restricted:latest"' in refused.stderr


def test_jobs_become_pods_and_pods_are_bound_to_nodes(cluster, node):
    name, _ = node
    template = {"spec": {**pod("x")["spec"], "restartPolicy": "Never", "nodeSelector": {"for": name}}}
    assert cluster.kubectl("label", "node", name, f"for={name}").returncode == 0
    metadata = {"name": "bound", "namespace": "default"}
    apply(cluster, {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}})

    def bound_to() -> list[str]:
        pods = read(cluster, "pods", "-l", "batch.kubernetes.io/job-name=bound")["items"]
        return [item["spec"].get("nodeName", "") for item in pods]

    cluster.until(lambda: bound_to() == [name], "the pod of the Job to be bound")
    assert cluster.kubectl("delete", "job", "bound").returncode == 0


def test_api_server_reaches_kubelet_at_cluster_address_with_client_certificate(cluster, node):
    name, kubelet = node
    nonce = secrets.token_hex(8)
    callers: list[str] = []
    apply(cluster, pod("logged", nodeName=name))
    serving = threading.Thread(target=lambda: callers.append(answer_one_request(cluster, kubelet, nonce)))
    serving.start()
    logs = cluster.kubectl("logs", "logged", "-c", "main")
    serving.join()
    assert logs.stdout == nonce, logs.stderr
    assert callers == ["kube-apiserver-kubelet-client"]


def answer_one_request(cluster: Cluster, kubelet, body: str) -> str:
    """Speak TLS as a kubelet; return who the caller's certificate says it is."""
    key_pair = cluster.certificate("kubelet", addresses.CLUSTER_IP)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(cluster.home.pki / "ca.crt"))
    tls.verify_mode = ssl.CERT_REQUIRED
    load_certificate(tls, key_pair.certificate, key_pair.key)
    line, _ = kubelet.accept()
    heard = b""
    with tls.wrap_socket(line, server_side=True) as secure:
        while b"\r\n\r\n" not in heard and (piece := secure.recv(65536)):
            heard += piece
        secure.sendall(f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        subject = dict(row[0] for row in secure.getpeercert()["subject"])
    return subject["commonName"]


def test_extension_api_servers_are_told_whom_to_trust(cluster):
    told = read(cluster, "configmap", "-n", "kube-system", "extension-apiserver-authentication")["data"]
    assert told["requestheader-client-ca-file"] == (cluster.home.pki / "front-proxy-ca.crt").read_text()
    assert told["client-ca-file"] == (cluster.home.pki / "ca.crt").read_text()


def test_the_audit_log_names_who_did_what(cluster):
    ann = cluster.user("auditee", "system:masters")
    assert cluster.kubectl("create", "configmap", "audited", as_user=ann).returncode == 0

    def entries() -> list[dict]:
        return [
            entry
            for entry in cluster.audit()
            if (entry["user"]["username"], entry["verb"], entry["stage"]) == ("auditee", "create", "ResponseComplete")
        ]

    cluster.until(lambda: bool(entries()), "the audit log to be written")
    (entry,) = entries()
    assert entry["objectRef"]["name"] == "audited"
    assert entry["responseStatus"]["code"] == 201
    assert "requestObject" not in entry


def test_a_component_can_be_away_for_a_while_and_come_back(cluster):
    """As long as a test wants: the supervisor does not restart what was stopped on request."""
    before = cluster.unit("kube-apiserver").crash
    cluster.stop("kube-apiserver")
    assert cluster.kubectl("get", "namespaces", "--request-timeout=2s").returncode == 1
    cluster.resume("kube-apiserver")
    cluster.until(lambda: cluster.kubectl("get", "--raw", "/readyz").returncode == 0, "the API server to be back")
    assert cluster.unit("kube-apiserver").crash == before
