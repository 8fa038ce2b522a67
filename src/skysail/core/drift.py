"""What others have changed of children that are to stay as they were applied.

Only the API server knows for sure, because it writes some values otherwise than it was told: amounts, what is empty. So
it is asked what applying once more would change, and nothing is written for that. It is asked only about a child that
has changed since it was last compared, and in which something looks otherwise.
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

# Whoever changes it again and again is not fought: his change stays for so long, and twice as long each time.
_TRUCE_SECONDS = 300.0
_LONGEST_TRUCE_SECONDS = 6 * 3600.0
_FORGOTTEN_SECONDS = 24 * 3600.0
# Of children that are long gone; to compare one again does no harm.
_MOST_MARKS = 50_000

# Maps that mean something else with anything added.
_WHOLE = {"matchLabels", "nodeSelector", "selector"}

Child = tuple[Resource, str]


class Drift:
    """What was compared, and what was put back when."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._compared: dict[Child, str] = {}
        # When each was put back last, and how often.
        self._put_back: dict[Child, tuple[float, int]] = {}

    def note(self, resource: Resource, applied: Object) -> None:
        """It is as it should be."""
        if len(self._compared) >= _MOST_MARKS:
            self._compared.clear()
        self._compared[resource, applied.metadata.uid] = _mark(applied)

    def put_back(self, resource: Resource, applied: Object) -> None:
        """Somebody had changed it."""
        child = (resource, applied.metadata.uid)
        times = self._put_back[child][1] if child in self._put_back else 0
        self._put_back[child] = (asyncio.get_running_loop().time(), times + 1)

    async def is_there(self, resource: Resource, known: Object, manifest: Manifest) -> bool:
        """Whether somebody has changed what the manifest says, and it is time to put it back."""
        child, metadata = (resource, known.metadata.uid), known.metadata
        if self._compared.get(child) == _mark(known) or self._has_truce(child):
            return False
        live = await self._client.get(resource, metadata.namespace, metadata.name, dict)
        if _hash(live) != _hash(manifest):
            raise Stale(f"{resource.kind} {metadata.key} was applied anew, and our cache does not know that yet")
        if not _holds(manifest, live) and await self._would_change(resource, live, manifest):
            return True
        self.note(resource, known)
        return False

    async def _would_change(self, resource: Resource, live: Manifest, manifest: Manifest) -> bool:
        try:
            applied = await self._client.apply(resource, manifest, dict, dry_run=True)
        except Terminating:
            raise
        except (Forbidden, Invalid):
            # It could not be put back either: what is there goes on, and whoever needs a change is told then.
            return False
        return bool(_part(manifest, applied) != _part(manifest, live))

    def _has_truce(self, child: Child) -> bool:
        now = asyncio.get_running_loop().time()
        recent = {each: (at, times) for each, (at, times) in self._put_back.items() if now - at < _FORGOTTEN_SECONDS}
        self._put_back = recent
        at, times = recent.get(child, (-math.inf, 1))
        truce: float = min(_TRUCE_SECONDS * 2 ** (times - 1), _LONGEST_TRUCE_SECONDS)
        return now - at < truce


def _hash(child: Manifest) -> str:
    """Of the manifest that it was applied from."""
    found: str = child["metadata"].get("annotations", {}).get(Annotation.APPLIED, "")
    return found


def _mark(child: Object) -> str:
    """Other with each change of the spec. Kinds without a generation are written by few, and have the version."""
    return str(child.metadata.generation or child.metadata.resource_version)


def _holds(wanted: Any, found: Any) -> bool:
    """Whether all that is wanted is there as it was written. If not, it may still be the same."""
    if isinstance(wanted, dict):
        return not wanted or (isinstance(found, dict) and all(_has(found, *item) for item in wanted.items()))
    if isinstance(wanted, list):
        is_long = isinstance(found, list) and len(found) == len(wanted)
        return not wanted or (is_long and all(map(_holds, wanted, found)))
    return bool(wanted == found) or (wanted == "" and found is None)


def _has(found: Manifest, key: str, wanted: Any) -> bool:
    value = found.get(key)
    return bool(value == wanted) if key in _WHOLE else _holds(wanted, value)


def _part(wanted: Any, found: Any) -> Any:
    """What the manifest speaks of. The rest belongs to others, and may change between two looks."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return {key: found.get(key) if key in _WHOLE else _part(wanted[key], found.get(key)) for key in wanted}
    return found
