"""Build and start etcd, API server, controller manager and scheduler, with their certificates and flags."""
