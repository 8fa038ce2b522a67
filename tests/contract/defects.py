"""Broken worlds. Each breaks one rule of the API that operators were really bitten by; the contract must notice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.garbage_collector import GarbageCollector
from tests.simulation.pagination import Pages, Position
from tests.simulation.watches import Change, History
from tests.simulation.world import World
from tests.simulation.writes import Write

if TYPE_CHECKING:
    from skysail.kube.api.resources import Resource
    from tests.simulation.kinds import Kind
    from tests.simulation.ownership import Object, Owners
    from tests.simulation.writes import Preconditions


class NoConflicts(World):
    """The last writer wins."""

    def check_expectations(self, kind: Kind, live: Object, wanted: Object) -> None: ...


class NoPreconditions(World):
    """A delete hits whoever has the name now."""

    def check_preconditions(self, kind: Kind, live: Object, wanted: Preconditions) -> None: ...


class GenerationOfEverything(World):
    """A write of the status looks like a new wish."""

    def next_generation(self, live: Object, new: Object) -> int:
        return int(live["metadata"]["generation"]) + 1


class StandingVersion(World):
    """Every second change has the version of the one before."""

    _ticks = 0

    def next_version(self) -> int:
        self._ticks += 1
        self.version += self._ticks % 2
        return self.version


class NoisyNoop(World):
    """A write that changes nothing is a change."""

    def is_noop(self, live: Object, new: Object, owners: Owners) -> bool:
        return False


class NoFinalizers(World):
    """Nothing is held."""

    def is_held(self, obj: Object) -> bool:
        return False


class StickyApply(World):
    """What was applied once is never removed."""

    def apply(self, kind: Kind, live: Object, wanted: Object, write: Write, *, force: bool) -> Object:
        rows = [row for row in live["metadata"]["managedFields"] if row["manager"] != write.manager.name]
        forgotten = {**live, "metadata": {**live["metadata"], "managedFields": rows}}
        return super().apply(kind, forgotten, wanted, write, force=force)


class RudeApply(World):
    """Apply takes from others without being told to."""

    def apply(self, kind: Kind, live: Object, wanted: Object, write: Write, *, force: bool) -> Object:
        return super().apply(kind, live, wanted, write, force=True)


class WholeStatusWrite(World):
    """A write of the status takes the spec along."""

    def blend(self, kind: Kind, live: Object, wanted: Object, subresource: str) -> Object:
        return {**super().blend(kind, live, wanted, subresource), "spec": wanted.get("spec", live["spec"])}


class WetRun(World):
    """A dry run is stored."""

    def create(self, kind: Kind, manifest: Object, write: Write) -> Object:
        return super().create(kind, manifest, Write(write.manager))


class RepeatedPage(World):
    """The token of every page is the token of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = _RepeatingPages(self)


class _RepeatingPages(Pages):
    def token(self, position: Position) -> str:
        return super().token(Position(position.rv, ("", "")))


class SilentDelete(World):
    """Open watches are not told of deletions."""

    def __init__(self) -> None:
        super().__init__()
        self.history.__class__ = _WithoutDeletesNow


class _WithoutDeletesNow(History):
    def tell(self, resource: Resource, change: Change) -> None:
        if not change.gone:
            super().tell(resource, change)


class ForgottenDelete(World):
    """A watch that comes back is not told of deletions meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.history.__class__ = _WithoutDeletesBefore


class _WithoutDeletesBefore(History):
    def since(self, resource: Resource, version: int) -> list[Change] | None:
        changes = super().since(resource, version)
        return None if changes is None else [change for change in changes if not change.gone]


class EndlessHistory(World):
    """A watch from too long ago starts in the middle and says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.history.__class__ = _NeverTooOld


class _NeverTooOld(History):
    def since(self, resource: Resource, version: int) -> list[Change] | None:
        return super().since(resource, version) or []


class NoCollector(World):
    """Children outlive their owners."""

    def __init__(self) -> None:
        super().__init__()
        self.janitor.__class__ = _Idle


class _Idle(GarbageCollector):
    def noticed(self, obj: Object, *, gone: bool) -> None: ...


SEEDED: dict[type[World], str] = {
    NoConflicts: "replacing-a_put_on_an_old_version_is_a_conflict",
    NoPreconditions: "deleting-a_delete_for_another_uid_is_a_conflict",
    GenerationOfEverything: "replacing-a_put_of_the_status_keeps_the_generation",
    StandingVersion: "creating-each_write_has_a_higher_version",
    NoisyNoop: "replacing-a_put_that_changes_nothing_makes_no_version",
    NoFinalizers: "deleting-a_finalizer_holds_the_object",
    StickyApply: "applying-a_field_that_is_no_longer_applied_is_removed",
    RudeApply: "applying-a_field_of_somebody_else_is_a_conflict",
    WholeStatusWrite: "replacing-a_put_of_the_status_ignores_the_rest",
    WetRun: "creating-a_dry_run_creates_nothing",
    RepeatedPage: "listing-pages_show_each_object_once",
    SilentDelete: "watching-a_held_end_is_told_twice",
    ForgottenDelete: "watching-a_watch_tells_what_happened_since",
    EndlessHistory: "watching-a_watch_from_too_long_ago_ends_with_410",
    NoCollector: "collecting-children_go_with_their_owner",
}
