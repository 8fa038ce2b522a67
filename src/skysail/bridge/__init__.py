"""The bridge: listens in the cluster, and forwards the connections of each port to one instance at a cloud."""
