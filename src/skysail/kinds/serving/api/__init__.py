"""API types of ModelDeployment and MLModel."""
