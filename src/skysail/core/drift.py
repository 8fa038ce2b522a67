"""Detection of changes that others made to applied children.

The API server normalises some values (quantities, empty fields), so a local comparison has false positives. If a child
differs locally, a dry-run apply decides whether it has drifted. Unchanged children are not compared again.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

from skysail.base.names import Annotation
from skysail.core.errors import Stale
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import Resource
from skysail.kube.client.client import Client, Manifest
from skysail.kube.client.errors import Forbidden, Invalid, Terminating

# Back off when another client keeps changing the object: leave it alone for this long after a correction, and twice
# as long each time.
_BACKOFF_SECONDS = 300.0
_MAX_BACKOFF_SECONDS = 6 * 3600.0
_FORGOTTEN_SECONDS = 24 * 3600.0
# Bounds the memory used for deleted children. Comparing a child twice is harmless.
_MAX_MARKS = 50_000

# Maps that are compared as a whole, because an added key changes their meaning.
_ATOMIC_MAPS = {"matchLabels", "nodeSelector", "selector"}

Child = tuple[Resource, str]


class DriftDetector:
    """Record of compared children and of corrections."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._compared: dict[Child, str] = {}
        # Time of the last correction of each child, and number of corrections.
        self._put_back: dict[Child, tuple[float, int]] = {}

    def mark_in_sync(self, resource: Resource, applied: Object) -> None:
        """Record that the child matches its manifest."""
        if len(self._compared) >= _MAX_MARKS:
            self._compared.clear()
        self._compared[resource, applied.metadata.uid] = _version_mark(applied)

    def record_correction(self, resource: Resource, applied: Object) -> None:
        """Record that a drifted child was corrected."""
        child = (resource, applied.metadata.uid)
        times = self._put_back[child][1] if child in self._put_back else 0
        self._put_back[child] = (asyncio.get_running_loop().time(), times + 1)

    async def needs_correction(self, resource: Resource, known: Object, manifest: Manifest) -> bool:
        """Return whether the child differs from the manifest and may be corrected now.

        Raises Stale if the cache lags behind the last apply.
        """
        child, metadata = (resource, known.metadata.uid), known.metadata
        if self._compared.get(child) == _version_mark(known) or self._in_backoff(child):
            return False
        live = await self._client.get(resource, metadata.namespace, metadata.name, dict)
        if _hash(live) != _hash(manifest):
            raise Stale(f"{resource.kind} {metadata.key} was applied again, and the cache is older than that")
        if not _is_subset(manifest, live) and await self._would_change(resource, live, manifest):
            return True
        self.mark_in_sync(resource, known)
        return False

    async def _would_change(self, resource: Resource, live: Manifest, manifest: Manifest) -> bool:
        try:
            applied = await self._client.apply(resource, manifest, dict, dry_run=True)
        except Terminating:
            raise
        except (Forbidden, Invalid):
            # The correction would be rejected as well; the error is reported when a change becomes necessary.
            return False
        return bool(_project(manifest, applied) != _project(manifest, live))

    def _in_backoff(self, child: Child) -> bool:
        now = asyncio.get_running_loop().time()
        recent = {each: (at, times) for each, (at, times) in self._put_back.items() if now - at < _FORGOTTEN_SECONDS}
        self._put_back = recent
        at, times = recent.get(child, (-math.inf, 1))
        backoff: float = min(_BACKOFF_SECONDS * 2 ** (times - 1), _MAX_BACKOFF_SECONDS)
        return now - at < backoff


def _hash(child: Manifest) -> str:
    """Return the hash of the manifest that the child was applied from."""
    found: str = child["metadata"].get("annotations", {}).get(Annotation.LAST_APPLIED_HASH, "")
    return found


def _version_mark(child: Object) -> str:
    """Return a value that changes with each change of the spec.

    Kinds without a generation use the resourceVersion; few clients write them.
    """
    return str(child.metadata.generation or child.metadata.resource_version)


def _is_subset(desired: Any, found: Any) -> bool:
    """Return whether `found` contains `desired` literally. False proves no difference: values may be normalised."""
    if isinstance(desired, dict):
        return not desired or (isinstance(found, dict) and all(_has(found, *item) for item in desired.items()))
    if isinstance(desired, list):
        is_long = isinstance(found, list) and len(found) == len(desired)
        return not desired or (is_long and all(map(_is_subset, desired, found)))
    return bool(desired == found) or (desired == "" and found is None)


def _has(found: Manifest, key: str, desired: Any) -> bool:
    value = found.get(key)
    return bool(value == desired) if key in _ATOMIC_MAPS else _is_subset(desired, value)


def _project(desired: Any, found: Any) -> Any:
    """Return the fields of `found` that the manifest sets. Other fields belong to others and may change at any time."""
    if isinstance(desired, dict) and isinstance(found, dict):
        return {
            key: found.get(key) if key in _ATOMIC_MAPS else _project(desired[key], found.get(key)) for key in desired
        }
    return found
