"""A Kubernetes cluster on this machine, without a container engine."""
