"""Gangs at Modal: clustered Functions, one App and one call for each launch."""
