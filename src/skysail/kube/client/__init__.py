"""API client: verbs, errors, transport, kubeconfig, token review."""
