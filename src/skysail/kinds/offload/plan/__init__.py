"""Pure decisions: where a pod goes, and what follows for the pod and its Job."""
