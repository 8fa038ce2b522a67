"""How much of everything: one size for all contestants of a run."""

from __future__ import annotations

from typing import Self

import msgspec


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """`plane_jobs` is smaller than `jobs`, because a real API server has to write each of them to its disk.

    Of pods that really run, `starts` one after another, and `pods_at_once`; `megabytes` go in or out of one. At a
    simulated cloud `cloud_starts` and `cloud_pods` likewise, and `claims` that live; `sandboxes` that run
    at Modal's stand-in. `reviews` of pods go to a
    webhook. Of training jobs that only pretend to run, `training_starts` one after another, `training_jobs` at
    once, and `training_held` that wait; of models on the same nodes, `models` at once. Each model server is asked
    `serving_rounds` times for `serving_seconds`.
    """

    jobs: int = 10_000
    pods: int = 20_000
    rate: int = 1_000
    seconds: float = 10.0
    plane_jobs: int = 1_500
    starts: int = 30
    pods_at_once: int = 100
    megabytes: int = 200
    cloud_starts: int = 10
    cloud_pods: int = 200
    claims: int = 2_000
    sandboxes: int = 500
    reviews: int = 10_000
    training_starts: int = 30
    training_jobs: int = 400
    training_held: int = 5_000
    models: int = 1_000
    serving_rounds: int = 5
    serving_seconds: float = 3.0

    @classmethod
    def scaled(cls, scale: float) -> Self:
        """Fewer objects for a shorter time; events come as fast as ever."""
        full = cls()
        return cls(
            jobs=max(10, round(full.jobs * scale)),
            pods=max(20, round(full.pods * scale)),
            rate=full.rate,
            seconds=max(1.0, full.seconds * scale),
            plane_jobs=max(10, round(full.plane_jobs * scale)),
            starts=max(3, round(full.starts * scale)),
            pods_at_once=max(5, round(full.pods_at_once * scale)),
            megabytes=max(10, round(full.megabytes * scale)),
            cloud_starts=max(3, round(full.cloud_starts * scale)),
            cloud_pods=max(5, round(full.cloud_pods * scale)),
            claims=max(20, round(full.claims * scale)),
            sandboxes=max(10, round(full.sandboxes * scale)),
            reviews=max(200, round(full.reviews * scale)),
            training_starts=max(3, round(full.training_starts * scale)),
            training_jobs=max(10, round(full.training_jobs * scale)),
            training_held=max(20, round(full.training_held * scale)),
            models=max(10, round(full.models * scale)),
            serving_rounds=max(1, round(full.serving_rounds * scale)),
            serving_seconds=max(1.0, full.serving_seconds * scale),
        )

    @property
    def events(self) -> int:
        """At the steady rate."""
        return round(self.rate * self.seconds)

    @property
    def burst(self) -> int:
        """Events that come at once, after the steady ones."""
        return self.events // 2
