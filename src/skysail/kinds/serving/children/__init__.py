"""Manifests of the objects that a model owns: Job, Deployment, Services, HPA, PVC, revisions. Pure."""
