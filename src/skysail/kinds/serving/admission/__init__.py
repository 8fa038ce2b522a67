"""Validation of models on their way into the cluster. Pure."""
