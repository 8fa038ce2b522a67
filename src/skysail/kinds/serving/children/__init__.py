"""Manifests of a model's children."""
