"""Kinds whose controller does not exist yet: a condition says so, and nothing else happens."""
