"""Probes and lifecycle handlers: exec, HTTP, TCP, gRPC."""
