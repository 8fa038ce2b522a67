"""Kinds that can own pods at clouds: how to read them at the API server, and which of them are gangs. Pure."""

from __future__ import annotations

from skysail.kube.api.resources import Resource

# Plural by group and kind.
PLURALS = {
    ("batch", "Job"): "jobs",
    ("batch", "CronJob"): "cronjobs",
    ("apps", "ReplicaSet"): "replicasets",
    ("apps", "Deployment"): "deployments",
    ("apps", "StatefulSet"): "statefulsets",
    ("jobset.x-k8s.io", "JobSet"): "jobsets",
    ("trainer.kubeflow.org", "TrainJob"): "trainjobs",
    ("ml.example.com", "TrainingJob"): "trainingjobs",
    ("modal-operator.io", "ModalJob"): "modaljobs",
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): "leaderworkersets",
    ("kubeflow.org", "PyTorchJob"): "pytorchjobs",
    ("kubeflow.org", "TFJob"): "tfjobs",
    ("kubeflow.org", "XGBoostJob"): "xgboostjobs",
    ("kubeflow.org", "MPIJob"): "mpijobs",
    ("kubeflow.org", "PaddleJob"): "paddlejobs",
    ("kubeflow.org", "JAXJob"): "jaxjobs",
    ("kubeflow.org", "Trial"): "trials",
    ("kubeflow.org", "Experiment"): "experiments",
    ("serving.kserve.io", "InferenceService"): "inferenceservices",
    ("serving.knative.dev", "Revision"): "revisions",
    ("serving.knative.dev", "Configuration"): "configurations",
    ("serving.knative.dev", "Service"): "services",
}


def resource_of(api_version: str, kind: str) -> Resource | None:
    """Return the resource of an owner. Returns None for a kind that Skysail does not know."""
    group, _, version = api_version.rpartition("/")
    plural = PLURALS.get((group, kind))
    return Resource(group, version, plural, kind) if plural else None
