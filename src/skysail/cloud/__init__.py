"""Interfaces of providers, which run pods, and simulated clouds. Imports no Kubernetes code."""
