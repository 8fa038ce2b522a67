"""API type of OffloadPolicy, and the webhooks that change pods on their way into the cluster."""
