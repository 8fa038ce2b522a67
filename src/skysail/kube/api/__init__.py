"""Kubernetes types as data: resources, objects, schemas, CRDs, RBAC rules, quantities, tolerations."""
