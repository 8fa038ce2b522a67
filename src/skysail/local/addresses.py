"""Addresses, ports and folders inside the local cluster.

Each local cluster has its own network namespace, so all of them use the same addresses and ports.
"""

from __future__ import annotations

BRIDGE = "skysail0"
# Address of the local cluster. Not loopback: the API server rejects loopback addresses in endpoints, and pods must
# reach it.
CLUSTER_IP = "10.244.0.1"
POD_RANGE = "10.244.0.0/16"
SERVICE_RANGE = "10.96.0.0/16"
# Private addresses that models may be downloaded from: the cluster's own Services and pods.
MODEL_SOURCES = ("*.svc", "*.svc.cluster.local", POD_RANGE, SERVICE_RANGE)
API_SERVICE = "10.96.0.1"
API_PORT = 6443
API_URL = f"https://{CLUSTER_IP}:{API_PORT}"
OPERATOR_HEALTH_PORT = 8080
# The node of this machine, and the port of its kubelet API.
NODE = "local"
NODE_PORT = 10250
METRICS_PORT = 10251
# Service of the metrics API, named by the APIService.
METRICS_SERVICE = ("kube-system", "skysail-metrics")
# On a tmpfs of the local cluster: etcd has no password, so it gets no address that a pod could dial. For peers, etcd
# accepts only a plain file name, relative to its working directory.
RUN_FOLDER = "/run/skysail"
MOUNT_FOLDER = "/run/skysail-mounts"  # used only while a container starts; every id may traverse it
ETCD_SOCKET = f"unix://{RUN_FOLDER}/etcd.sock"
ETCD_PEER_SOCKET = "unix://etcd-peer.sock"
# etcd has no peers and no clients that discover it, but it does not start without URLs to advertise.
ETCD_CLIENT_URL = "http://127.0.0.1:2379"
ETCD_PEER_URL = "http://127.0.0.1:2380"
