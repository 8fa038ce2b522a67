"""Interfaces to the places where pods run, and simulated clouds. Imports no Kubernetes code."""
