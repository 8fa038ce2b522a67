"""Errors of a reconcile that is dropped and requeued.

KubeError
├── fence.Fenced   another process leads
└── Stale          this process has an old view of the object
"""

from __future__ import annotations

from skysail.kube.client.errors import KubeError


class Stale(KubeError):
    """The cache or the snapshot is older than the object: requeue and observe again. Nothing was written."""
