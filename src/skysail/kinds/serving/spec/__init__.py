"""Desired state of a model: spec translation, runtimes, model addresses, names and revisions."""
