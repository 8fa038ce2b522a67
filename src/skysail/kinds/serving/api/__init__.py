"""API types of models."""
