"""A kubelet for a provider: registers a node, runs the pods that are bound to it, and serves kubectl's verbs."""
