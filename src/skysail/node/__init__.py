"""A kubelet for any provider: registers a node, runs its pods, and serves `kubectl logs`, `exec` and the rest."""
