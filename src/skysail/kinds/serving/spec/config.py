"""What the operator was told that holds for every model. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from skysail.base.settings import Settings
from skysail.kinds.serving.spec.runtimes import ROWS


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """`allowed` are the private ranges and hosts that models may come from; `images` stand for runtimes' own."""

    fetch_image: str
    images: Mapping[str, str]
    allowed: tuple[str, ...]
    limit_bytes: int
    prepare_seconds: int
    progress_seconds: int
    soak_seconds: int

    def image(self, runtime: str) -> str:
        """Empty where there is no such runtime."""
        row = ROWS.get(runtime)
        return self.images.get(runtime) or (row.image if row else "")

    def known(self, image: str, runtime: str) -> str:
        """Whose own image stands in the place of this runtime's: the runtime itself, or one that is asked like it.

        Empty for an image of the user's: that has the runtime's ports, and may do everything else otherwise.
        """
        names = [runtime, *(name for name, row in ROWS.items() if row.is_asked_like(ROWS[runtime]))]
        return next((name for name in names if self.image(name) == image), "")


def terms(settings: Settings) -> Terms:
    return Terms(
        fetch_image=settings.fetch_image,
        images=msgspec.to_builtins(settings.runtime_images),
        allowed=settings.model_sources,
        limit_bytes=settings.model_limit_bytes,
        prepare_seconds=settings.prepare_seconds,
        progress_seconds=settings.rollout_seconds,
        soak_seconds=settings.soak_seconds,
    )
