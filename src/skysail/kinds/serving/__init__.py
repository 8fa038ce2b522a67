"""Serving: ModelDeployment and MLModel are two spellings of one engine."""
