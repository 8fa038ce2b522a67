"""Serving engine: ModelDeployment and MLModel share one reconciler, plan and children."""
