"""Manifests of the children of a TrainingJob. Pure."""
