"""The garbage collector's policy while caches fill: it decides the slowest passes of an operator with many objects.

A full collection walks everything that is held; with 20,000 pods it stops the loop for a quarter of a second. Objects
that a list brought live long, so they are put where the collector does not look.
"""

from __future__ import annotations

import gc

from skysail.kube.cache.reflector import Gate

_THRESHOLDS = (50_000, 20, 100)
# Below this many new objects a collection finds little, and is felt all the same.
_WORTH_FREEZING = 1000


class Collector(Gate):
    """One per process: the collector is the process's, too."""

    def __init__(self) -> None:
        self._lists = 0
        self._objects = 0

    def began(self) -> None:
        self._lists += 1
        gc.disable()

    def ended(self, objects: int) -> None:
        self._lists -= 1
        self._objects += objects
        if self._lists:
            return
        if self._objects >= _WORTH_FREEZING:
            self._objects = 0
            gc.unfreeze()
            gc.collect()
            gc.freeze()
        gc.set_threshold(*_THRESHOLDS)
        gc.enable()
