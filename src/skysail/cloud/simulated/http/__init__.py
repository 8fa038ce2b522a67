"""Simulated accounts over HTTP, so that they outlive the operator: protocol, server, client."""
