"""Operator configuration that applies to every model. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from skysail.base.settings import Settings
from skysail.kinds.serving.spec.runtimes import RUNTIMES


class ServingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration for models.

    `allowed` lists private address ranges and hosts that models may come from; `images` overrides the images of
    runtimes.
    """

    fetch_image: str
    images: Mapping[str, str]
    allowed: tuple[str, ...]
    limit_bytes: int
    prepare_deadline_seconds: int
    progress_seconds: int
    min_ready_seconds: int

    def image(self, runtime: str) -> str:
        """Return the image of a runtime; empty if the runtime does not exist."""
        row = RUNTIMES.get(runtime)
        return self.images.get(runtime) or (row.image if row else "")

    def matching_runtime(self, image: str, runtime: str) -> str:
        """Return the runtime whose own image this is: `runtime` itself, or one with the same interface.

        Returns an empty string for a custom image: it has the runtime's ports, but may behave differently otherwise.
        """
        names = [runtime, *(name for name, row in RUNTIMES.items() if row.is_compatible_with(RUNTIMES[runtime]))]
        return next((name for name in names if self.image(name) == image), "")


def serving_config(settings: Settings) -> ServingConfig:
    return ServingConfig(
        fetch_image=settings.fetch_image,
        images=msgspec.to_builtins(settings.runtime_images),
        allowed=settings.allowed_model_hosts,
        limit_bytes=settings.max_model_bytes,
        prepare_deadline_seconds=settings.prepare_deadline_seconds,
        progress_seconds=settings.progress_deadline_seconds,
        min_ready_seconds=settings.min_ready_seconds,
    )
