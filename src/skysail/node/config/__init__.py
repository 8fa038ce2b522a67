"""Container configs from pod specs: environment, volumes, and the objects that a pod refers to."""
