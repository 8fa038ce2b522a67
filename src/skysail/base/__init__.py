"""Shared basics that import nothing else of Skysail: names, settings, logs, metrics, health, clocks, backoff."""
