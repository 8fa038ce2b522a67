"""How something is written or deleted: by whom, which part, under which conditions."""

from __future__ import annotations

import msgspec

from tests.simulation.ownership import Manager


class Write(msgspec.Struct, frozen=True):
    """A dry run checks and answers like the real thing and stores nothing."""

    manager: Manager
    dry_run: bool = False

    @property
    def subresource(self) -> str:
        return self.manager.subresource


class Preconditions(msgspec.Struct, rename="camel"):
    uid: str | None = None
    resource_version: str | None = None


class DeleteOptions(msgspec.Struct, rename="camel"):
    """How to delete. Comes in the body, or else in the query; never from both."""

    preconditions: Preconditions = msgspec.field(default_factory=Preconditions)
    grace_period_seconds: int | None = None
    propagation_policy: str | None = None
    dry_run: list[str] = []
