"""Where things are inside the hull. Its network is its own, so every hull has the same addresses and ports."""

from __future__ import annotations

BRIDGE = "skysail0"
# The hull's own address. Not loopback: the API server refuses loopback in endpoints, and pods must reach it.
CLUSTER_IP = "10.244.0.1"
POD_RANGE = "10.244.0.0/16"
SERVICE_RANGE = "10.96.0.0/16"
# What models may come from on this machine although it is private: the cluster's own Services and pods.
MODEL_SOURCES = ("*.svc", "*.svc.cluster.local", POD_RANGE, SERVICE_RANGE)
API_SERVICE = "10.96.0.1"
API_PORT = 6443
API_URL = f"https://{CLUSTER_IP}:{API_PORT}"
OPERATOR_HEALTH_PORT = 8080
# The node that stands for this machine, and where it serves what kubectl asks of it.
NODE = "local"
NODE_PORT = 10250
METRICS_PORT = 10251
# The Service by which the API server knows who serves metrics.
METRICS_SERVICE = ("kube-system", "skysail-metrics")
# On the hull's own tmpfs: etcd has no password, so it has no address that a pod could dial either. Where it waits for
# peers it takes a plain name only, which is a file in the folder that it is started in.
RUN_FOLDER = "/run/skysail"
MOUNT_FOLDER = "/run/skysail-mounts"  # for the moment of a container's start; every id may pass it
ETCD_SOCKET = f"unix://{RUN_FOLDER}/etcd.sock"
ETCD_PEER_SOCKET = "unix://etcd-peer.sock"
# It has neither peers nor clients that look it up, but it does not start without addresses to tell them.
ETCD_CLIENT_URL = "http://127.0.0.1:2379"
ETCD_PEER_URL = "http://127.0.0.1:2380"
