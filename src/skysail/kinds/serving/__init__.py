"""Serving: one engine for ModelDeployment and MLModel."""
