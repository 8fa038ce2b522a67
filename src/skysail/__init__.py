"""Skysail: one Kubernetes operator that trains, serves and bursts machine-learning work."""

__version__ = "0.1.0"
