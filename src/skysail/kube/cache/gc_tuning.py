"""Garbage collector tuning while caches fill. It determines the slowest reconciles of a large operator.

A full collection visits every object: with 20,000 pods it blocks the event loop for a quarter of a second. Listed
objects live long, so they are frozen, and the collector skips them.
"""

from __future__ import annotations

import gc

from skysail.kube.cache.reflector import ListObserver

_THRESHOLDS = (50_000, 20, 100)
# Minimum number of new objects for a collection: below it, the pause costs more than the collection frees.
_WORTH_FREEZING = 1000


class GcTuner(ListObserver):
    """Tunes the garbage collector. One per process, like the collector itself."""

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
