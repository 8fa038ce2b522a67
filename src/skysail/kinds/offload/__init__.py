"""Webhooks that change pods on their way into the cluster."""
