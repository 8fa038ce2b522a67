"""Manifests of the objects that an attempt owns: Jobs, headless Service, ConfigMap, checkpoint PVC. Pure."""
